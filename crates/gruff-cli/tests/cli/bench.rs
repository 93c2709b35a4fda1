//! bench, beside llama-bench's formats.

use serde_json::Value;

use crate::gruff::Gruff;

const SHORT: [&str; 10] = ["bench", "-m", "tiny.gguf", "-p", "8", "-n", "2", "-r", "2", "--no-warmup"];

/// Fields of llama-bench's records.
const FIELDS: &str = "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size \
    model_n_params n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe \
    split_mode main_gpu no_kv_offload flash_attn devices tensor_split tensor_buft_overrides load_mode lazy_mode \
    embeddings no_op_offload no_host repack fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns \
    stddev_ns avg_ts stddev_ts";

#[test]
fn records_have_llama_benchs_fields() {
    let gruff = Gruff::new();
    let records = gruff.json(&[&SHORT[..], &["-pg", "4,2", "-d", "0,16", "-o", "json"]].concat());
    let records = records.as_array().unwrap();
    let labels: Vec<&str> = records.iter().map(|record| record["test"].as_str().unwrap()).collect();
    assert_eq!(labels, ["pp8", "tg2", "pp4+tg2", "pp8 @ d16", "tg2 @ d16", "pp4+tg2 @ d16"]);
    for record in records {
        for field in
            FIELDS.split_whitespace().chain(["samples_ns", "samples_ts", "load_ms", "bandwidth_share"])
        {
            assert!(record.get(field).is_some(), "{field}");
        }
        assert_eq!(record["samples_ts"].as_array().unwrap().len(), 2);
        assert!(record["avg_ts"].as_f64().unwrap() > 0.0);
        assert_eq!(record["model_type"], "qwen35 300K Q8_0");
    }
}

#[test]
fn lines_tables_and_columns_agree() {
    let gruff = Gruff::new();
    let lines = gruff.ok(&[&SHORT[..], &["-o", "jsonl"]].concat());
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 2);
    let csv = gruff.ok(&[&SHORT[..], &["-o", "csv"]].concat());
    let mut csv = csv.lines();
    let head = csv.next().unwrap();
    assert!(head.starts_with(&FIELDS.split_whitespace().collect::<Vec<_>>().join(",")), "{head}");
    assert_eq!(csv.count(), 2);
    let table = gruff.ok(&SHORT);
    let mut rows = table.lines();
    assert_eq!(
        rows.next().unwrap(),
        "| model                          |       size |     params | backend    | threads |            test |                  t/s |"
    );
    assert_eq!(
        rows.next().unwrap(),
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: | -------------------: |"
    );
    assert!(rows.next().unwrap().contains("|             pp8 |"));
    assert!(table.contains("load") && table.contains("peak memory") || !cfg!(target_os = "linux"), "{table}");
}

#[test]
fn generate_is_measured_through_the_public_api() {
    let gruff = Gruff::new();
    let records = gruff.json(&["bench", "tiny.gguf", "--generate", "-r", "1", "-t", "1", "-o", "json"]);
    assert_eq!(records[0]["test"], "generate128");
    assert_eq!(records[0]["n_gen"], 128);
    assert!(records[0]["best_ts"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_profile_accounts_for_every_operation() {
    let gruff = Gruff::new();
    let records = gruff.json(&[&SHORT[..], &["--profile", "-o", "json"]].concat());
    for record in records.as_array().unwrap() {
        let profile = &record["profile"];
        let families = profile["families"].as_array().unwrap();
        let names: Vec<&str> = families.iter().map(|family| family["family"].as_str().unwrap()).collect();
        for name in ["matmul", "attention", "delta-net", "norm", "rope", "embedding"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert_eq!(names.contains(&"sampling"), record["n_gen"] == 2);
        let inside: u64 = families.iter().map(|family| family["ns"].as_u64().unwrap()).sum();
        let of_ops: u64 =
            profile["ops"].as_array().unwrap().iter().map(|op| op["ns"].as_u64().unwrap()).sum();
        assert_eq!(inside, of_ops);
        assert_eq!(inside + profile["between_ns"].as_u64().unwrap(), profile["ns"].as_u64().unwrap());
        assert!(profile["f32_products"].as_f64().unwrap() > 1e6);
    }
    let table = gruff.ok(&[&SHORT[..], &["--profile"]].concat());
    assert!(table.contains("tg2, operation by operation: 2 steps"), "{table}");
    assert!(table.contains("| **delta-net** "), "{table}");
}

#[test]
fn batches_have_llama_batched_benchs_columns() {
    let gruff = Gruff::new();
    let batch = ["bench", "tiny.gguf", "-p", "8,16", "-n", "2", "--batch", "1,3"];
    let table = gruff.ok(&batch);
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(
        rows[0],
        "|     PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
    );
    assert!(rows[3].starts_with("|      8 |      2 |    3 |     30 |"), "{table}");
    let records = gruff.json(&[&batch[..], &["-d", "4", "-o", "json"]].concat());
    let counts: Vec<[u64; 4]> = records
        .as_array()
        .unwrap()
        .iter()
        .map(|record| ["pp", "tg", "pl", "n_kv"].map(|field| record[field].as_u64().unwrap()))
        .collect();
    assert_eq!(counts, [[8, 2, 1, 14], [8, 2, 3, 42], [16, 2, 1, 22], [16, 2, 3, 66]]);
    assert!(records[0]["speed_tg"].as_f64().unwrap() > 0.0);
}
