use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use crate::console::stdout;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gruff completions bash > ~/.local/share/bash-completion/completions/gruff\n  \
                  gruff completions zsh > ~/.zfunc/_gruff"
)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // Not straight to standard output: the generator panics when that is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "gruff", &mut script);
        Ok(stdout().write_all(&script)?)
    }
}
