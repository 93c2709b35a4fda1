//! The prefix cache in files, on a model whose answers are easy to foretell.

mod adder;

use std::path::{Path, PathBuf};

use adder::{Adder, Answers, expected, options, request};
use gruff_engine::{Context, Engine, EngineOptions, Guidance, PrefixCacheFolder, Request};
use gruff_kernels::KvDtype;
use gruff_models::Model;

fn with(folder: &Path, bytes: u64) -> EngineOptions {
    let prefix_cache_folder = Some(PrefixCacheFolder { path: folder.to_owned(), bytes });
    EngineOptions { prefix_cache_folder, ..options(2048, 2) }
}

fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|index| (index * index * 7 + index * seed + seed) % 50).collect()
}

/// Answers one prompt, and says how much of it was there.
fn ask(engine: &mut Engine, prompt: &[u32]) -> usize {
    let borders = vec![300, prompt.len().saturating_sub(30)];
    let id = engine.submit(Request { borders, ..request(prompt, 5) }).unwrap();
    let answers = Answers::run(engine);
    assert_eq!(answers.tokens[&id], expected(prompt, 5));
    answers.finished[&id].1.cached_tokens
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let below = |path: PathBuf| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    below(folder.to_owned()).flat_map(below).collect()
}

#[test]
fn what_was_computed_survives_a_restart() {
    for recurrent in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let model = Adder::new(recurrent);
        let prompt = text(1, 700);
        let mut engine = Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap();
        assert_eq!(ask(&mut engine, &prompt), 0);
        // What two branches share is in both of their files.
        let other = [&prompt[..500], &text(2, 400)].concat();
        ask(&mut engine, &other);
        drop(engine);
        assert_eq!(files(folder.path()).len(), 2);

        let model = Adder::new(recurrent);
        let mut engine = Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap();
        assert_eq!(ask(&mut engine, &prompt), if recurrent { 670 } else { 699 });
        assert_eq!(
            ask(&mut engine, &[&other[..850], &[1, 2, 3]].concat()),
            if recurrent { 300 } else { 850 }
        );
        // The whole of it once more, with what was read and what came since.
        drop(engine);
        let mut engine = Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap();
        assert!(ask(&mut engine, &other) >= if recurrent { 870 } else { 899 });
        // Less than is worth a file.
        drop(engine);
        let before = files(folder.path()).len();
        let mut engine = Engine::new(model, with(folder.path(), 1 << 30)).unwrap();
        ask(&mut engine, &text(9, 100));
        drop(engine);
        assert_eq!(files(folder.path()).len(), before);
    }
}

#[test]
fn files_of_another_model_are_not_read_nor_are_those_of_a_changed_one_written() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = text(1, 700);
    ask(&mut Engine::new(Adder::new(true), with(folder.path(), 1 << 30)).unwrap(), &prompt);
    assert_eq!(files(folder.path()).len(), 1);
    let exact = EngineOptions { kv_dtype: KvDtype::F32, ..with(folder.path(), 1 << 30) };
    assert_eq!(ask(&mut Engine::new(Adder::new(true), exact).unwrap(), &prompt), 0);
    assert_eq!(ask(&mut Engine::new(Adder::new(false), with(folder.path(), 1 << 30)).unwrap(), &prompt), 0);
    // One that is put in the folder of another is refused by what it says itself.
    let all = files(folder.path());
    assert_eq!(all.len(), 3);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let strange = all[to].with_file_name("0123.gruffpre");
        std::fs::copy(&all[from], strange).unwrap();
    }
    assert!(ask(&mut Engine::new(Adder::new(true), with(folder.path(), 1 << 30)).unwrap(), &prompt) > 0);

    let other = tempfile::tempdir().unwrap();
    let model = Adder::new(true);
    let mut engine = Engine::new(model.clone(), with(other.path(), 1 << 30)).unwrap();
    model.set_attn_implementation(gruff_models::AttnImplementation::Flash);
    ask(&mut engine, &prompt);
    drop(engine);
    assert_eq!(files(other.path()), Vec::<PathBuf>::new());
    // One that was changed before the engine began is not the file's model either, nor when it is again.
    let model = Adder::new(true);
    let guard = model.hooks().on("model.norm", |_, _| Ok(None)).unwrap();
    let mut engine = Engine::new(model.clone(), with(other.path(), 1 << 30)).unwrap();
    ask(&mut engine, &prompt);
    drop(engine);
    assert_eq!(files(other.path()), Vec::<PathBuf>::new());
    let mut engine = Engine::new(model.clone(), with(other.path(), 1 << 30)).unwrap();
    drop(guard);
    ask(&mut engine, &prompt);
    drop(engine);
    assert_eq!(files(other.path()), Vec::<PathBuf>::new());
    assert_eq!(ask(&mut Engine::new(model, with(folder.path(), 1 << 30)).unwrap(), &prompt), 670);
}

#[test]
fn damaged_files_are_refused_and_harm_nobody() {
    for recurrent in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let prompt = text(1, 400);
        ask(&mut Engine::new(Adder::new(recurrent), with(folder.path(), 1 << 30)).unwrap(), &prompt);
        let [path] = files(folder.path()).try_into().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let header = 16 + u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
        // Cut short, made longer, and changed: in the head, the header, its checksum, the first page.
        let mut damaged: Vec<Vec<u8>> = [0, 7, 15, 40, header, header + 33, whole.len() - 1]
            .iter()
            .map(|len| whole[..*len].to_vec())
            .collect();
        damaged.push([&whole[..], &[0]].concat());
        for at in [0, 8, 12, 13, 15, 20, header - 3, header + 5, header + 40] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            damaged.push(bytes);
        }
        for bytes in damaged {
            std::fs::write(&path, bytes).unwrap();
            let mut engine = Engine::new(Adder::new(recurrent), with(folder.path(), 1 << 30)).unwrap();
            assert_eq!(ask(&mut engine, &prompt), 0, "nothing of it is used");
            // Lest it is written anew.
            std::mem::forget(engine);
        }
        std::fs::write(&path, whole).unwrap();
        let mut engine = Engine::new(Adder::new(recurrent), with(folder.path(), 1 << 30)).unwrap();
        assert!(ask(&mut engine, &prompt) > 300);
        // One that goes away while the engine runs is missed no more than that.
        let mut engine = Engine::new(Adder::new(recurrent), with(folder.path(), 1 << 30)).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(ask(&mut engine, &prompt), 0);
    }
}

#[test]
fn files_take_no_more_than_they_may() {
    let folder = tempfile::tempdir().unwrap();
    let taken = || files(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    let model = Adder::new(false);
    ask(&mut Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap(), &text(1, 500));
    let one = taken();
    for seed in 2..6 {
        let mut engine = Engine::new(model.clone(), with(folder.path(), 5 * one / 2)).unwrap();
        ask(&mut engine, &text(seed, 500));
        drop(engine);
        assert!(taken() <= 5 * one / 2);
    }
    assert_eq!(files(folder.path()).len(), 2);
    let mut engine = Engine::new(model.clone(), with(folder.path(), one)).unwrap();
    assert_eq!(ask(&mut engine, &text(5, 500)), 499, "the last one is there");
    assert_eq!(ask(&mut engine, &text(2, 500)), 0, "an older one has made room");
    std::mem::forget(engine);
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let message = Engine::new(model, with(&file, 1 << 20)).map(drop).unwrap_err().to_string();
    assert!(message.contains("prefix_cache_folder") && message.contains("cannot be used"), "{message}");
}

#[test]
fn what_one_prompt_reads_does_not_undo_what_another_of_the_request_found() {
    let folder = tempfile::tempdir().unwrap();
    let model = Adder::new(true);
    let (prompt, negative) = (text(1, 400), text(2, 400));
    let mut engine = Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap();
    ask(&mut engine, &prompt);
    ask(&mut engine, &negative);
    drop(engine);
    // Room for one state: the second one that is read takes the place of the first.
    let one = model.config().caches.bytes_per_snapshot(127) as u64;
    let options = EngineOptions { prefix_cache: Some(2 * one), ..with(folder.path(), 1 << 30) };
    let mut engine = Engine::new(model, options).unwrap();
    let guidance = Some(Guidance { scale: 1.0, negative_prompt: negative });
    let id = engine.submit(Request { guidance, ..request(&prompt, 5) }).unwrap();
    let answers = Answers::run(&mut engine);
    assert_eq!(answers.tokens[&id], expected(&prompt, 5));
    assert_eq!((engine.stats().prefix_cache.lookups, engine.stats().prefix_cache.hits), (2, 1));
}

#[test]
fn what_a_killed_process_was_writing_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let model = Adder::new(false);
    ask(&mut Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap(), &text(1, 500));
    let [whole] = files(folder.path()).try_into().unwrap();
    let (old, new) = (whole.with_file_name(".gruffpre-a1"), whole.with_file_name(".gruffpre-b2"));
    for path in [&old, &new] {
        std::fs::write(path, "half").unwrap();
    }
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 3600);
    for path in [&old, &whole] {
        std::fs::File::options().append(true).open(path).unwrap().set_modified(before).unwrap();
    }
    drop(Engine::new(model, with(folder.path(), 1 << 30)).unwrap());
    assert!(!old.exists() && new.exists() && whole.exists(), "another process may still be at the new one");
}

/// Writes all that is worth it, as whoever has nothing else to do.
fn save_all(engine: &mut Engine) {
    while let Some(pause) = engine.save_some() {
        engine.audit().unwrap();
        std::thread::sleep(pause);
    }
    assert!(!engine.is_saving());
    engine.audit().unwrap();
}

#[test]
fn what_is_kept_is_written_while_the_engine_runs() {
    for recurrent in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let model = Adder::new(recurrent);
        let prompt = text(1, 700);
        // Room for every state that there is.
        let options = || EngineOptions { prefix_cache: Some(1 << 24), ..with(folder.path(), 1 << 30) };
        let mut engine = Engine::new(model.clone(), options()).unwrap();
        ask(&mut engine, &prompt);
        assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
        save_all(&mut engine);
        let [written] = files(folder.path()).try_into().unwrap();
        // A little more is not worth another file.
        ask(&mut engine, &text(1, 790));
        save_all(&mut engine);
        assert_eq!(files(folder.path()), std::slice::from_ref(&written));
        // Much more is, in the place of the one that has a part of it.
        let longer = [&prompt[..], &expected(&prompt, 5), &text(3, 500)].concat();
        ask(&mut engine, &longer);
        save_all(&mut engine);
        let [grown] = files(folder.path()).try_into().unwrap();
        assert_ne!(grown, written);
        // It is killed.
        std::mem::forget(engine);
        let mut engine = Engine::new(model.clone(), options()).unwrap();
        assert_eq!(ask(&mut engine, &prompt), if recurrent { 670 } else { 699 });
        assert!(ask(&mut engine, &longer) >= if recurrent { 1170 } else { 1200 });
        // What was written and has not changed is not written again at the end.
        save_all(&mut engine);
        let before = files(folder.path());
        let modified = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
        let times: Vec<_> = before.iter().map(modified).collect();
        drop(engine);
        assert_eq!(before.iter().map(modified).collect::<Vec<_>>(), times);
    }
}

#[test]
fn requests_go_before_files_that_are_being_written() {
    for recurrent in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let model = Adder::new(recurrent);
        // 32 pages, most of which the first prompt takes and then the second needs.
        let context = Context::Tokens(1024);
        let few = EngineOptions { context, max_sequences: 1, ..with(folder.path(), 1 << 30) };
        let mut engine = Engine::new(model.clone(), few).unwrap();
        ask(&mut engine, &text(1, 700));
        for _ in 0..3 {
            assert!(engine.save_some().is_some());
        }
        assert!(engine.is_saving());
        assert_eq!(ask(&mut engine, &text(2, 900)), 0);
        assert!(!engine.is_saving());
        assert_eq!(engine.stats().preemptions, 0);
        engine.audit().unwrap();
        // Nothing of it is left.
        let start = std::time::Instant::now();
        while !files(folder.path()).is_empty() {
            assert!(start.elapsed().as_secs() < 60, "{:?}", files(folder.path()));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // One that is not whole when the engine ends is written with the rest.
        assert!(engine.save_some().is_some() && engine.save_some().is_some());
        drop(engine);
        let [written] = files(folder.path()).try_into().unwrap();
        assert!(written.extension().is_some());
        let mut engine = Engine::new(model, with(folder.path(), 1 << 30)).unwrap();
        assert!(ask(&mut engine, &text(2, 900)) > 800);
    }
}

#[test]
fn what_was_used_last_keeps_its_file_where_there_is_room_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = Adder::new(false);
    ask(&mut Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap(), &text(1, 500));
    let [first] = files(folder.path()).try_into().unwrap();
    let one = first.metadata().unwrap().len();
    let mut engine = Engine::new(model.clone(), with(folder.path(), one + one / 2)).unwrap();
    for seed in [2, 3] {
        ask(&mut engine, &text(seed, 500));
    }
    save_all(&mut engine);
    std::mem::forget(engine);
    assert_eq!(files(folder.path()).len(), 1);
    let mut engine = Engine::new(model.clone(), with(folder.path(), one + one / 2)).unwrap();
    assert_eq!(ask(&mut engine, &text(3, 500)), 499);
    // One that made room and is used again has a file again, though nothing of it is new.
    ask(&mut engine, &text(2, 500));
    save_all(&mut engine);
    ask(&mut engine, &text(3, 500));
    save_all(&mut engine);
    let [written] = files(folder.path()).try_into().unwrap();
    ask(&mut engine, &text(2, 500));
    save_all(&mut engine);
    let [other] = files(folder.path()).try_into().unwrap();
    assert_ne!(other, written);
    // So it is at an orderly end, and where another process made the room.
    std::fs::remove_file(other).unwrap();
    drop(engine);
    let mut engine = Engine::new(model.clone(), with(folder.path(), one + one / 2)).unwrap();
    assert_eq!(ask(&mut engine, &text(2, 500)), 499);
    std::mem::forget(engine);
    // Where there is room for none, none is written.
    let other = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(model, with(other.path(), one / 2)).unwrap();
    ask(&mut engine, &text(1, 500));
    assert_eq!(engine.save_some(), None);
    assert_eq!(files(other.path()), Vec::<PathBuf>::new());
}

#[test]
fn where_a_file_has_gone_the_next_best_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = Adder::new(false);
    let (long, short) = (text(1, 700), [&text(1, 400)[..], &text(2, 300)].concat());
    let mut paths = Vec::new();
    for prompt in [&short, &long] {
        let mut engine = Engine::new(model.clone(), with(folder.path(), 1 << 30)).unwrap();
        ask(&mut engine, prompt);
        drop(engine);
        paths.extend(
            files(folder.path()).into_iter().filter(|path| !paths.contains(path)).collect::<Vec<_>>(),
        );
    }
    let mut engine = Engine::new(model, with(folder.path(), 1 << 30)).unwrap();
    std::fs::remove_file(&paths[1]).unwrap();
    assert_eq!(ask(&mut engine, &long), 400);
}

#[test]
fn what_cannot_be_written_is_tried_again_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(Adder::new(true), with(folder.path(), 1 << 30)).unwrap();
    ask(&mut engine, &text(1, 700));
    let own = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_dir(&own).unwrap();
    let rest = loop {
        let pause = engine.save_some().expect("not all is in files");
        engine.audit().unwrap();
        if pause.as_secs() > 1 {
            break pause;
        }
        std::thread::sleep(pause);
    };
    assert!(!engine.is_saving() && rest.as_secs() <= 60, "{rest:?}");
    // Whoever looks earlier is told the same.
    assert!(engine.save_some().is_some_and(|pause| pause.as_secs() > 1));
    // The end tries once more.
    std::fs::create_dir(&own).unwrap();
    drop(engine);
    assert_eq!(files(folder.path()).len(), 1);
}
