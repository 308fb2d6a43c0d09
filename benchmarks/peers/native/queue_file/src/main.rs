//! Measures the crate queue-file as `benchmarks.peers.columns` and `benchmarks.peers.kills` measure the others.
//!
//! `queue-file-peer WHAT FOLDER SECONDS SIZE BATCH FILLED` prints one figure; "None": the queue cannot do that. Of the
//! processes to kill, each prints the number of every message once its call has returned.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use queue_file::QueueFile;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Sizes that the caller decides: bytes of a message, messages of a batch, messages that wait for those who take.
struct Sizes {
    message: usize,
    batch: usize,
    filled: usize,
}

impl Sizes {
    fn numbered(&self, number: usize) -> Vec<u8> {
        let mut payload = format!("{number:016}").into_bytes();
        let rest = b"abcdefghijklmnopqrstuvwxyz0123456789".iter().cycle();
        payload.extend(rest.take(self.message - payload.len()));
        payload
    }

    fn batch_from(&self, number: usize) -> Vec<Vec<u8>> {
        (number..number + self.batch).map(|each| self.numbered(each)).collect()
    }
}

/// Opens the queue; without `is_durable`, nothing is synced. A message that was taken is not overwritten with zeros.
fn open(folder: &Path, is_durable: bool) -> Outcome<QueueFile> {
    let mut queue = QueueFile::open(folder.join("queue"))?;
    queue.set_sync_writes(is_durable);
    queue.set_overwrite_on_remove(false);
    Ok(queue)
}

/// Repeats a step that says how many messages it moved; returns how many a second.
fn for_seconds(seconds: f64, mut step: impl FnMut() -> Outcome<usize>) -> Outcome<f64> {
    let (mut count, start) = (0, Instant::now());
    while start.elapsed().as_secs_f64() < seconds {
        match step()? {
            0 => break,
            moved => count += moved,
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn fill(queue: &mut QueueFile, sizes: &Sizes) -> Outcome<()> {
    let end = Instant::now() + Duration::from_secs(1);
    let mut count = 0;
    while count < sizes.filled && Instant::now() < end {
        queue.add_n(sizes.batch_from(count))?;
        count += sizes.batch;
    }
    Ok(())
}

fn take(queue: &mut QueueFile) -> Outcome<Option<Vec<u8>>> {
    let payload = queue.peek()?;
    if payload.is_some() {
        queue.remove()?;
    }
    Ok(payload)
}

fn take_many(queue: &mut QueueFile, count: usize) -> Outcome<Vec<Vec<u8>>> {
    let payloads: Vec<_> = queue.iter().take(count).collect();
    queue.remove_n(payloads.len())?;
    Ok(payloads)
}

fn number_of(payload: &[u8]) -> Outcome<usize> {
    Ok(std::str::from_utf8(&payload[..16])?.parse()?)
}

fn rate(what: &str, folder: &Path, seconds: f64, sizes: &Sizes) -> Outcome<Option<f64>> {
    let is_durable = what.starts_with("durable");
    let mut queue = open(folder, is_durable)?;
    let mut taken = Vec::new();
    let rate = match what {
        "put" | "durable put, 1 thread" => {
            let payload = sizes.numbered(0);
            for_seconds(seconds, || queue.add(&payload).map(|()| 1).map_err(Into::into))?
        }
        "get" => {
            fill(&mut queue, sizes)?;
            for_seconds(seconds, || {
                let payload = take(&mut queue)?;
                let moved = usize::from(payload.is_some());
                taken.extend(payload);
                Ok(moved)
            })?
        }
        _ if what == format!("put by {}", sizes.batch) => {
            let payloads = vec![sizes.numbered(0); sizes.batch];
            for_seconds(seconds, || queue.add_n(&payloads).map(|()| payloads.len()).map_err(Into::into))?
        }
        _ if what == format!("get by {}", sizes.batch) => {
            fill(&mut queue, sizes)?;
            for_seconds(seconds, || {
                let payloads = take_many(&mut queue, sizes.batch)?;
                let moved = payloads.len();
                taken.extend(payloads);
                Ok(moved)
            })?
        }
        _ => return Ok(None),
    };
    for (expected, payload) in taken.iter().enumerate() {
        if number_of(payload)? != expected {
            return Err("it hands out other messages than were put, or in another order".into());
        }
    }
    Ok(Some(rate))
}

/// Puts or takes until killed, or takes what is left.
fn be_killed(what: &str, folder: &Path, sizes: &Sizes) -> Outcome<()> {
    let (mut queue, mut out) = (open(folder, false)?, std::io::stdout());
    if what == "taking" {
        for number in 0..sizes.filled {
            queue.add(&sizes.numbered(number))?;
        }
    }
    for number in 0.. {
        let told = if what == "putting" {
            queue.add(&sizes.numbered(number))?;
            number
        } else if let Some(payload) = take(&mut queue)? {
            number_of(&payload)?
        } else if what == "draining" {
            return Ok(());
        } else {
            std::thread::sleep(Duration::from_secs(1)); // the kill comes
            continue;
        };
        writeln!(out, "{told}")?;
        out.flush()?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, folder, seconds, message, batch, filled] = &words[..] else {
        return Err("usage: queue-file-peer WHAT FOLDER SECONDS SIZE BATCH FILLED".into());
    };
    let sizes = Sizes { message: message.parse()?, batch: batch.parse()?, filled: filled.parse()? };
    if ["putting", "taking", "draining"].contains(&what.as_str()) {
        return be_killed(what, Path::new(folder), &sizes);
    }
    match rate(what, Path::new(folder), seconds.parse()?, &sizes)? {
        Some(figure) => println!("{figure}"),
        None => println!("None"),
    }
    Ok(())
}
