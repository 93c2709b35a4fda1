//! Holds this machine's devices to the contracts of all operations and prints how they did.

use std::process::ExitCode;

use gruff_kernels::conformance::{Options, Outcome, run};

const USAGE: &str = "\
Holds this machine's devices to the contracts of all operations.

Usage: conformance [--device cpu|reference|all|cuda|cuda:N] [--filter OP] [--subset NAME] [--plain]
                   [--threads N] [--shard K/N] [--json] [--failures]
       conformance --compile-cuda ARCH

  --device    which devices: the CPU (default), the reference itself, both, or an NVIDIA card
  --threads   the CPU with so many threads only, instead of with 1 and with 2
  --filter    only cases whose operation and label contain OP: `linear`, `linear Q4_K`
  --subset    only a subset of the cases: sanitize, what compute-sanitizer gets through in about two minutes
  --shard     only the K-th of N parts, for several processes side by side: 1/2
  --plain     with kernels left out: the CPU's plain ones, or, on a card, what stands in their place
  --json      one JSON object a line instead of the table
  --failures  only what failed
  --compile-cuda
              compile every CUDA kernel for ARCH (sm_90a) instead; needs NVRTC, but no card

Exit code 1 when something failed, 2 for wrong usage.";

struct Arguments {
    options: Options,
    compile_cuda: Option<String>,
    json: bool,
    only_failures: bool,
}

fn parse() -> Result<Option<Arguments>, String> {
    let mut parsed =
        Arguments { options: Options::default(), compile_cuda: None, json: false, only_failures: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => return Ok(None),
            "--json" => parsed.json = true,
            "--failures" => parsed.only_failures = true,
            "--plain" => parsed.options.plain = true,
            "--filter" => parsed.options.filter = Some(arguments.next().ok_or("--filter needs a name")?),
            "--subset" => {
                let name = arguments.next().ok_or("--subset needs a name")?;
                parsed.options.subset =
                    Some(name.parse().map_err(|fault: gruff_kernels::Error| fault.to_string())?);
            }
            "--threads" => {
                let count = arguments.next().and_then(|count| count.parse().ok());
                parsed.options.threads =
                    vec![count.filter(|count| *count > 0).ok_or("--threads needs a number")?];
            }
            "--shard" => {
                let part = arguments.next().ok_or("--shard needs K/N")?;
                parsed.options.shard =
                    Some(part.parse().map_err(|fault: gruff_kernels::Error| fault.to_string())?);
            }
            "--compile-cuda" => {
                parsed.compile_cuda = Some(arguments.next().ok_or("--compile-cuda needs an architecture")?);
            }
            "--device" => {
                let name = arguments.next().ok_or("--device needs a name")?;
                let ordinal = name.strip_prefix("cuda").map(|rest| rest.strip_prefix(':').unwrap_or("0"));
                parsed.options.cuda = ordinal.and_then(|ordinal| ordinal.parse().ok());
                (parsed.options.cpu, parsed.options.reference) = match name.as_str() {
                    _ if parsed.options.cuda.is_some() => (false, false),
                    "cpu" => (true, false),
                    "reference" => (false, true),
                    "all" => (true, true),
                    _ => return Err(format!("{name:?} is not a device; one of cpu, reference, all, cuda:N")),
                };
            }
            _ => return Err(format!("{argument:?} is not an option; --help lists them")),
        }
    }
    Ok(Some(parsed))
}

fn print_line(outcome: &Outcome, json: bool) {
    let Outcome { op, label, device, bar, distance, failure } = outcome;
    let fault = failure.as_ref().map(ToString::to_string);
    let against = format!("{:?}", bar.reference).to_lowercase();
    if json {
        let fault = fault.map_or("null".to_owned(), |fault| format!("{fault:?}"));
        println!(
            "{{\"op\":{op:?},\"case\":{label:?},\"device\":{device:?},\"reference\":{against:?},\
             \"distance\":\"{distance:e}\",\"tolerance\":\"{}\",\"failure\":{fault}}}",
            bar.tolerance
        );
    } else {
        let verdict = fault.map_or("ok".to_owned(), |fault| format!("FAILED: {fault}"));
        println!(
            "{op:<22} {label:<44} {device:<26} {against:<5} {distance:>9.1e}  {:<17} {verdict}",
            bar.tolerance.to_string()
        );
    }
}

/// Compiles every CUDA kernel, a line each.
fn compile_cuda(arch: &str) -> ExitCode {
    let all = gruff_kernels::cuda::compile_all(arch, |compiled| match &compiled.result {
        Ok(code) => println!("{:<60} {:>9} bytes", compiled.name, code.len()),
        Err(fault) => println!("{:<60} FAILED\n{fault}", compiled.name),
    });
    match all {
        Ok(all) => {
            let failures = all.iter().filter(|compiled| compiled.result.is_err()).count();
            eprintln!("{} kernels compiled for {arch}, {failures} failed", all.len());
            ExitCode::from(u8::from(failures > 0))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(fault) => {
            eprintln!("{fault}");
            return ExitCode::from(2);
        }
    };
    if let Some(arch) = &arguments.compile_cuda {
        return compile_cuda(arch);
    }
    if !arguments.json && !arguments.only_failures {
        println!(
            "{:<22} {:<44} {:<26} {:<5} {:>9}  {:<17} verdict",
            "operation", "case", "device", "ref", "distance", "tolerance"
        );
    }
    let report = run(&arguments.options, |outcomes| {
        let shown = outcomes.iter().filter(|o| !arguments.only_failures || o.failure.is_some());
        shown.for_each(|outcome| print_line(outcome, arguments.json));
    });
    match report {
        Ok(report) => {
            let failures = report.failures().count();
            let all = report.outcomes.len();
            eprintln!(
                "{all} comparisons with the reference, {} of bits, {failures} failed",
                report.bit_checks
            );
            ExitCode::from(u8::from(failures > 0))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
