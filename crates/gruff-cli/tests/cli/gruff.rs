//! A folder with a model, and the binary.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::tiny;

/// A folder of its own, which is the user's home too.
pub(crate) struct Gruff {
    folder: TempDir,
}

/// What a command left.
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Gruff {
    /// With `tiny.gguf` in the folder.
    pub(crate) fn new() -> Self {
        let gruff = Self { folder: tempfile::tempdir().unwrap() };
        tiny::write(&gruff.path("tiny.gguf")).unwrap();
        gruff
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gruff"));
        command.args(arguments).current_dir(self.folder.path());
        for name in [
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_TOKEN",
            "XDG_CACHE_HOME",
            "GRUFF_LOG",
            "GRUFF_ISA",
            "OPENAI_API_KEY",
        ] {
            command.env_remove(name);
        }
        // Figures and messages are the CPU's, whatever cards a machine has.
        command.env("CUDA_VISIBLE_DEVICES", "");
        command.env("HOME", self.folder.path()).env("HF_HOME", self.path("hf")).env("HF_HUB_OFFLINE", "1");
        command
    }

    /// Runs to the end, with nothing on standard input.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::from(self.command(arguments).stdin(Stdio::null()).output().unwrap())
    }

    /// Runs to the end with `input` on standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Outcome {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        Outcome::from(child.wait_with_output().unwrap())
    }

    /// Runs what must succeed, and gives what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).ok()
    }

    /// Runs what must succeed and print JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// The tiny model, cut or changed byte-wise.
    pub(crate) fn damaged(&self, name: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.path("tiny.gguf")).unwrap();
        damage(&mut bytes);
        self.write(name, bytes);
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Outcome {
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// Ends with `code` and one paragraph that has all of `parts` in it, without a panic.
    pub(crate) fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert!(self.stderr.contains("error:"), "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        assert_eq!(self.stdout, "");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.stderr);
        }
        if code == 1 {
            let lines = self.stderr.lines().filter(|line| line.starts_with("error:")).count();
            assert_eq!((lines, self.stderr.trim_end().lines().count()), (1, 1), "{}", self.stderr);
        }
    }
}

pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}
