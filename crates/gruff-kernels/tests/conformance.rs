//! Every operation on every device of this machine, held to its contract.

use gruff_kernels::conformance::{Options, run};

fn hold(options: &Options) {
    let report = run(options, |_| ()).expect("devices of this machine");
    let failures: Vec<String> = report
        .failures()
        .map(|o| {
            let failure = o.failure.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{} {} on {}: {failure} ({:.1e})", o.op, o.label, o.device, o.distance)
        })
        .collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), report.outcomes.len(), failures.join("\n"));
    assert!(!report.outcomes.is_empty());
}

#[test]
fn cpu() {
    hold(&Options::default());
}

#[test]
fn reference() {
    hold(&Options { cpu: false, reference: true, ..Options::default() });
}

#[test]
fn plain() {
    hold(&Options { cpu: false, plain: true, ..Options::default() });
}
