//! The gruff command line: a terminal's manners over the library. What a command does is in crate `gruff`.

mod args;
mod commands;
mod console;
mod conversation;
mod failure;
mod progress;
mod signals;
mod size;

use std::process::ExitCode;

use clap::Parser;

use commands::{Cli, Command, bench};
use console::Console;

fn main() -> ExitCode {
    let cli = Cli::parse_from(bench::spell_out(std::env::args_os()));
    let console = Console::new(&cli.output);
    console.trace_to_stderr(cli.command.log_format());
    signals::watch();
    match run(cli.command, &console) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, &console),
    }
}

fn run(command: Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::Run(command) => command.run(console),
        Command::Serve(command) => command.run(console),
        Command::Chat(command) => command.run(console),
        Command::Inspect(command) => command.run(console),
        Command::Tokenize(command) => command.run(console),
        Command::Detokenize(command) => command.run(console),
        Command::Render(command) => command.run(console),
        Command::Bench(command) => command.run(console),
        Command::Logits(command) => command.run(console),
        Command::Embed(command) => command.run(console),
        Command::Perplexity(command) => command.run(console),
        Command::Imatrix(command) => command.run(console),
        Command::Compare(command) => command.run(console),
        Command::Quantize(command) => command.run(console),
        Command::Doctor(command) => command.run(console),
        Command::Download(command) => command.run(console),
        Command::Fit(command) => command.run(console),
        Command::List(command) => command.run(console),
        Command::Convert(command) => command.run(console),
        Command::Dequantize(command) => command.run(console),
        Command::Split(command) => command.run(console),
        Command::Merge(command) => command.run(console),
        Command::Edit(command) => command.run(console),
        Command::Completions(command) => command.run(),
    }
}
