//! Signals end the program and leave nothing half done.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::gruff::Gruff;

/// Names in the folder.
fn names(gruff: &Gruff) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(gruff.path("."))
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn send(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Starts what takes long, and waits until it writes.
fn start(gruff: &Gruff, mut command: Command) -> (Child, PathBuf) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    loop {
        if let Some(name) = names(gruff).into_iter().find(|name| name.ends_with(".part")) {
            return (child, gruff.path(&name));
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether this program, and what it starts, ignores a signal, as under nohup. Only Linux says so.
fn ignores(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

const SAVE: [&str; 8] =
    ["perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "128", "--save-logits", "base.kld"];

fn with_text() -> Gruff {
    let gruff = Gruff::new();
    gruff.write("text.txt", "The quick brown fox jumps over the lazy dog. ".repeat(3000));
    gruff
}

#[test]
fn unfinished_files_go_with_the_program() {
    use std::os::unix::process::ExitStatusExt;
    for (signals, number) in [(&["-TERM"][..], 15), (&["-HUP"], 1), (&["-INT", "-INT"], 2)] {
        // Elsewhere a program cannot tell that nohup protects it.
        if number == 1 && (cfg!(not(target_os = "linux")) || ignores(1)) {
            continue;
        }
        let gruff = with_text();
        let (mut child, _) = start(&gruff, gruff.command(&SAVE));
        for signal in signals {
            send(&child, signal);
            // Two signals of one kind are one if they come at once.
            std::thread::sleep(Duration::from_millis(50));
        }
        let status = child.wait().unwrap();
        // A first Ctrl-C may have ended the work in an orderly way before the second came.
        assert!(status.signal() == Some(number) || status.code() == Some(1), "{signals:?}: {status}");
        assert_eq!(names(&gruff), ["text.txt", "tiny.gguf"], "{signals:?}");
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let gruff = with_text();
    let program = gruff.command(&SAVE);
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(program.get_program()).args(program.get_args());
    nohup.current_dir(gruff.path("."));
    let (mut child, part) = start(&gruff, nohup);
    send(&child, "-HUP");
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none() && part.exists());
    send(&child, "-TERM");
    child.wait().unwrap();
    assert!(!part.exists());
}

#[test]
fn a_server_ends_in_its_own_way() {
    use std::io::{BufRead, BufReader};
    for signal in ["-INT", "-TERM"] {
        let gruff = Gruff::new();
        let mut command = gruff.command(&["serve", "tiny.gguf", "--port", "0"]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("is served at")));
        // The handlers are set behind that line.
        std::thread::sleep(Duration::from_millis(200));
        send(&child, signal);
        assert!(lines.any(|line| line.unwrap().contains("Answers in progress are finished")), "{signal}");
        assert!(child.wait().unwrap().success(), "{signal}");
    }
}
