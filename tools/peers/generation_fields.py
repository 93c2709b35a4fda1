"""Records the fields of transformers' GenerationConfig and the arguments of generate.

    python tools/peers/generation_fields.py > tests/peers/generation_fields.json
    python tools/peers/generation_fields.py --check tests/peers/generation_fields.json

crates/gruff/src/generation_json.rs and docs/transformers.md are held to the list. Needs transformers only.
"""

import json
import sys
from pathlib import Path

import transformers
from transformers import GenerationConfig


def fields() -> dict:
    config = GenerationConfig()
    defaults = config._get_default_generation_params()
    names = sorted(set(vars(config)) | set(defaults) | {"transformers_version", "_from_model_config", "_commit_hash"})
    return {
        "version": transformers.__version__,
        "defaults": {name: defaults.get(name, None) for name in names},
    }


def main() -> None:
    found = fields()
    if sys.argv[1:2] != ["--check"]:
        json.dump(found, sys.stdout, indent=1, sort_keys=True)
        print()
        return
    recorded = json.loads(Path(sys.argv[2]).read_text())
    missing = sorted(set(found["defaults"]) - set(recorded["defaults"]))
    changed = [name for name, value in found["defaults"].items() if recorded["defaults"].get(name, value) != value]
    if missing or changed:
        sys.exit(f"transformers {found['version']} has other fields than {sys.argv[2]}: new {missing}, changed {changed}")
    print(f"{len(recorded['defaults'])} fields of transformers {found['version']}")


if __name__ == "__main__":
    main()
