//! `mitra sim --mutants` and `mitra sim --mutant NAME`.

use std::process::ExitCode;

use super::Args;

#[cfg(not(feature = "mutants"))]
pub(super) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "this mitra is built without mutants; run `cargo run --features mutants -- sim --mutants` in Mitra's sources"
    )
}

#[cfg(feature = "mutants")]
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    use std::io::{self, Write};

    use super::summary::counted;
    use crate::cli::write_json;
    use mitra_mutants::Mutant;
    use mitra_sweep::{find_mutant, mutant_by_name};

    let mut out = io::stdout().lock();
    let Some(name) = &args.mutant else {
        let names = Mutant::ALL.iter().map(|mutant| mutant.row().name);
        if args.json {
            write_json(&mut out, &names.collect::<Vec<_>>())?;
        } else {
            names.into_iter().try_for_each(|name| writeln!(out, "{name}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mutant = mutant_by_name(name)?;
    let row = mutant.row();
    let search = find_mutant(mutant, 0..row.seeds)?;
    let (checker, detail) = search.found.unzip();
    let seeds_needed = checker.map(|_| search.seeds);
    if args.json {
        let report = serde_json::json!({
            "mutant": row.name,
            "workload": row.workload,
            "found": checker.is_some(),
            "seeds_needed": seeds_needed,
            "checker": checker,
            "detail": detail,
        });
        write_json(&mut out, &report)?;
    } else {
        writeln!(out, "{}: {}", row.name, row.bug)?;
        match checker {
            Some(checker) => writeln!(
                out,
                "found by the checker {checker} of the workload {} after {}: {}",
                row.workload,
                counted(search.seeds, "seed"),
                detail.unwrap_or_default()
            )?,
            None => {
                writeln!(out, "survives {} of the workload {}", counted(search.seeds, "seed"), row.workload)?
            }
        }
    }
    Ok(if checker.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
