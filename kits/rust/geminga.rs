//! A Geminga broker for a test: copy this file to `tests/geminga/mod.rs`. It needs nothing but the standard library.
//!
//! ```ignore
//! mod geminga;
//!
//! #[tokio::test(flavor = "multi_thread")]
//! async fn a_month() {
//!     let broker = geminga::Broker::start(&[]);
//!     // subscribe and publish with broker.service_url and broker.topic("reminders") ...
//!     broker.advance(Duration::from_secs(30 * 86_400));
//! }
//! ```
//!
//! The command `geminga` has to be on the path, or the environment variable GEMINGA_COMMAND names it
//! ("python3 -m geminga"). Each `start` has a broker of its own on free ports, with a virtual clock and with faults
//! allowed, so tests that cargo runs side by side share no clock. It is ready in less than half a second, and ends when
//! it is dropped, or with its process, however that ends. The clock begins 20 years ahead of the machine's. If the test
//! panics, the end of the broker's log is printed.
//!
//! With GEMINGA_SERVICE_URL and GEMINGA_WEB_URL in the environment `start` uses the broker there, which needs a virtual
//! clock and, for faults, `--chaos`; beyond loopback also GEMINGA_OPERATOR_TOKEN, the broker's. The settings are those
//! it was started with then, and its clock is shared: `start` waits until the test of this process that uses it has
//! ended. Cargo runs one process after another; with nextest say `--test-threads 1`.
//!
//! All calls wait, and panic with what is wrong. So a test of tokio has the flavor "multi_thread", or its client would
//! stand still meanwhile.
#![allow(dead_code)]

use std::collections::hash_map::RandomState;
use std::env;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const LOG_SHOWN: usize = 4000;
/// 20 years, to the same day of the week: so a moment of the broker's clock is never one of the machine's.
const AHEAD_MS: i64 = 1044 * 7 * 86_400_000;
static RUNNING_BROKER: Mutex<()> = Mutex::new(());

/// One that runs until it is dropped. Topics are named by their last part: `"orders"`.
pub struct Broker {
    /// `pulsar://host:port`, for clients.
    pub service_url: String,
    /// `http://host:port`, for the admin API and metrics.
    pub web_url: String,
    namespace: String,
    rules: Mutex<Vec<String>>,
    own: Option<(Child, PathBuf)>,
    /// Held while the broker is one that was not started here.
    alone: Option<MutexGuard<'static, ()>>,
}

/// An entry that was looked at; nothing about it has changed.
pub struct Peeked {
    pub message_id: String,
    pub data: Vec<u8>,
}

impl Broker {
    /// Settings are keys of broker.conf: `"key=value"`.
    pub fn start(settings: &[&str]) -> Broker {
        // A broker that goes on running has the namespaces of earlier runs.
        let number = RandomState::new().build_hasher().finish();
        let [service_url, web_url] =
            ["GEMINGA_SERVICE_URL", "GEMINGA_WEB_URL"].map(|name| env::var(name).unwrap_or_default());
        assert_eq!(
            service_url.is_empty(),
            web_url.is_empty(),
            "set both GEMINGA_SERVICE_URL and GEMINGA_WEB_URL, or neither"
        );
        let mut broker = Broker {
            service_url,
            web_url,
            namespace: format!("public/test-{number:016x}"),
            rules: Mutex::default(),
            own: None,
            alone: None,
        };
        if broker.service_url.is_empty() {
            broker.run(settings);
        } else {
            // Another test may have panicked, which is no reason for this one not to run.
            broker.alone = Some(RUNNING_BROKER.lock().unwrap_or_else(|error| error.into_inner()));
        }
        let shown = broker.ask("GET", "/geminga/clock", "");
        let missing_ms = AHEAD_MS - (number_of(&shown, "now_ms") - number_of(&shown, "wall_ms"));
        if missing_ms > 0 {
            broker.ask("POST", "/geminga/clock", &format!("{{\"ms\":{missing_ms}}}"));
        }
        broker.ask("PUT", &format!("/admin/v2/namespaces/{}", broker.namespace), "{}");
        broker
    }

    fn run(&mut self, settings: &[&str]) {
        let directory = env::temp_dir().join(format!("geminga-{}", self.namespace.replace('/', "-")));
        fs::create_dir(&directory).expect("a directory for the broker");
        let given = env::var("GEMINGA_COMMAND").unwrap_or_else(|_| "geminga".into());
        let words: Vec<&str> = given.split_whitespace().collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["standalone", "--port", "0", "--web-port", "0", "--clock", "virtual"]);
        command.args(["--chaos", "--stop-with-stdin", "--data-dir"]).arg(directory.join("data"));
        for setting in ["isDelayedDeliveryDeliverAtTimeStrict=true"].iter().chain(settings) {
            command.args(["--set", setting]);
        }
        let log = File::create(directory.join("log")).expect("a log for the broker");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = spawned.unwrap_or_else(|error| {
            let _ = fs::remove_dir_all(&directory);
            panic!("the command geminga cannot be run (put it on the path, or set GEMINGA_COMMAND): {error}")
        });
        let out = child.stdout.take().expect("a pipe");
        self.own = Some((child, directory));
        let mut ready = String::new();
        BufReader::new(out).read_line(&mut ready).expect("the broker's ready line");
        assert!(!ready.is_empty(), "the broker ended before it was ready");
        self.service_url = text_of(&ready, "binary");
        self.web_url = text_of(&ready, "web");
    }

    /// The full name of a topic that no other test uses.
    pub fn topic(&self, name: &str) -> String {
        format!("persistent://{}/{name}", self.namespace)
    }

    // -- time -------------------------------------------------------------------------------------------------

    /// What the broker's clock shows.
    pub fn now(&self) -> SystemTime {
        let now_ms = number_of(&self.ask("GET", "/geminga/clock", ""), "now_ms");
        UNIX_EPOCH + Duration::from_millis(now_ms as u64)
    }

    /// Moves the clock. On return all that fell due has happened, in due order: each due message is with its consumer,
    /// or waits for one.
    pub fn advance(&self, length: Duration) {
        self.advance_by(length, "");
    }

    /// As `advance`; waits at each due time until consumers have acknowledged what they got.
    pub fn advance_until_acknowledged(&self, length: Duration) {
        let moved = self.advance_by(length, ",\"wait\":\"acknowledged\"");
        assert!(
            moved.contains("\"unacknowledged\":[]"),
            "not all was acknowledged within 30 s of its due time: {moved}"
        );
    }

    fn advance_by(&self, length: Duration, how: &str) -> String {
        self.ask("POST", "/geminga/clock", &format!("{{\"ms\":{}{how}}}", length.as_millis()))
    }

    /// Moves the clock to a moment of it, which is none of the machine's clock.
    pub fn advance_to(&self, moment: SystemTime) {
        if let Ok(ago) = self.now().duration_since(moment) {
            panic!(
                "{moment:?} is {} days in the past of the broker's clock, which never goes back. Count from now() of \
                 the broker, not from the machine's clock",
                ago.as_secs() / 86_400
            );
        }
        let to_ms = moment.duration_since(UNIX_EPOCH).expect("a moment after 1970").as_millis();
        self.ask("POST", "/geminga/clock", &format!("{{\"to_ms\":{to_ms}}}"));
    }

    /// Moves the clock to when the next delayed message is due, a TTL ends or something unused is deleted.
    pub fn advance_to_next(&self) {
        self.ask("POST", "/geminga/clock", "{\"next\":true}");
    }

    // -- faults -----------------------------------------------------------------------------------------------

    /// Deletes a bucket of the delayed index, and has the broker rebuild it.
    pub fn lose_bucket(&self, topic: &str, subscription: &str) {
        let path = format!("/geminga/delayed/persistent/{}/{}", self.namespace, encoded(topic));
        self.ask("POST", &format!("{path}/subscription/{}/lose-bucket", encoded(subscription)), "{}");
    }

    /// Puts a rule in force until the test ends: JSON as in docs/faults.md.
    pub fn set_fault(&self, rule: &str) {
        let made = self.ask("POST", "/geminga/faults", rule);
        self.rules.lock().unwrap().push(text_of(&made, "id"));
    }

    /// Ends the rules of this test.
    pub fn clear_faults(&self) {
        for rule in self.take_rules() {
            self.ask("DELETE", &format!("/geminga/faults/rules/{rule}"), "");
        }
    }

    fn take_rules(&self) -> Vec<String> {
        std::mem::take(&mut *self.rules.lock().unwrap())
    }

    // -- what is left -----------------------------------------------------------------------------------------

    /// Entries of a subscription that are not acknowledged, delayed ones too; a batch is one.
    pub fn backlog(&self, topic: &str, subscription: &str) -> i64 {
        number_of(&self.subscription(topic, subscription), "msgBacklog")
    }

    /// The entry of the backlog with that number from 1. Nothing is delivered or acknowledged.
    pub fn peek(&self, topic: &str, subscription: &str, number: u32) -> Option<Peeked> {
        let path = format!("{}/subscription/{}/position/{number}", self.path(topic), encoded(subscription));
        let (status, headers, data) = self.send("GET", &path, "").unwrap_or_else(|error| panic!("GET {path}: {error}"));
        let message_id =
            headers.lines().find_map(|line| line.strip_prefix("X-Pulsar-Message-ID: ")).unwrap_or_default();
        (status < 300).then(|| Peeked { message_id: message_id.into(), data })
    }

    /// Waits until all that may be delivered now is acknowledged; messages that are not due yet do not count.
    pub fn drain(&self, topic: &str, subscription: &str, at_most: Duration) {
        self.until(topic, subscription, at_most, |found| {
            number_of(found, "msgBacklog") <= number_of(found, "msgDelayed") && number_of(found, "unackedMessages") == 0
        });
    }

    /// Panics unless all that was published is acknowledged.
    pub fn assert_delivered(&self, topic: &str, subscription: &str, at_most: Duration) {
        self.until(topic, subscription, at_most, |found| number_of(found, "msgBacklog") == 0);
    }

    fn until(&self, topic: &str, subscription: &str, at_most: Duration, done: impl Fn(&str) -> bool) {
        let ends = Instant::now() + at_most;
        loop {
            let found = self.subscription(topic, subscription);
            if done(&found) {
                return;
            }
            assert!(
                Instant::now() < ends,
                "not within {at_most:?}: {} entries of {topic} / {subscription} are not acknowledged, {} of them not \
                 due yet{}",
                number_of(&found, "msgBacklog"),
                number_of(&found, "msgDelayed"),
                self.next_due()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn next_due(&self) -> String {
        let clock = self.ask("GET", "/geminga/clock", "");
        if value_of(&clock, "next_due_ms").starts_with("null") {
            return String::new();
        }
        let left_ms = number_of(&clock, "next_due_ms") - number_of(&clock, "now_ms");
        format!("; the broker's next message is due in {:?}", Duration::from_millis(left_ms.max(0) as u64))
    }

    /// The part of a topic's statistics that is about one subscription; over all partitions, if it has any.
    fn subscription(&self, topic: &str, subscription: &str) -> String {
        let path = self.path(topic);
        let partitions = number_of(&self.ask("GET", &format!("{path}/partitions"), ""), "partitions");
        let what = if partitions > 0 { "partitioned-stats?perPartition=false" } else { "stats" };
        let stats = self.ask("GET", &format!("{path}/{what}"), "");
        let all = stats.split_once("\"subscriptions\"").map_or("", |(_, all)| all);
        match all.find(&format!("\"{subscription}\":{{")) {
            Some(at) => all[at..].into(),
            None => panic!("{topic} has no subscription {subscription}"),
        }
    }

    fn path(&self, topic: &str) -> String {
        format!("/admin/v2/persistent/{}/{}", self.namespace, encoded(topic))
    }

    // -- HTTP, and JSON without a crate -----------------------------------------------------------------------

    /// The answer. Panics if the broker refuses.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> String {
        match self.send(method, path, body) {
            Ok((status, _, answer)) if status < 300 => String::from_utf8_lossy(&answer).into_owned(),
            Ok((status, _, reason)) => panic!("{method} {path}: {status}: {}", String::from_utf8_lossy(&reason)),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// Status, headers and body. HTTP 1.0: an answer ends with its connection, and is never in chunks.
    fn send(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String, Vec<u8>)> {
        let host = self.web_url.trim_start_matches("http://").trim_end_matches('/');
        let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n");
        let token = env::var("GEMINGA_OPERATOR_TOKEN").unwrap_or_default();
        if !token.is_empty() && path.starts_with("/geminga/") {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        let mut connection = TcpStream::connect(host)?;
        write!(connection, "{head}Content-Length: {}\r\n\r\n{body}", body.len())?;
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let headers = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = headers.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, headers, answer.split_off(end + 4)))
    }

    /// Ends the faults of the test and deletes its topics, on a broker that goes on running.
    fn clean(&self) {
        for rule in self.take_rules() {
            self.quietly("DELETE", &format!("/geminga/faults/rules/{rule}"));
        }
        let prefix = self.topic("");
        // The partitions of a topic go with it, so they are not in the second list.
        for (list, what) in [("/partitioned", "/partitions"), ("", "")] {
            let topics = self.quietly("GET", &format!("/admin/v2/persistent/{}{list}", self.namespace));
            for topic in topics.split('"').filter_map(|name| name.strip_prefix(&prefix)) {
                self.quietly("DELETE", &format!("{}{what}?force=true", self.path(topic)));
            }
        }
        self.quietly("DELETE", &format!("/admin/v2/namespaces/{}", self.namespace));
    }

    /// The test may have killed the broker, and what it found is to be shown.
    fn quietly(&self, method: &str, path: &str) -> String {
        match self.send(method, path, "") {
            Ok((status, _, answer)) if status < 300 => String::from_utf8_lossy(&answer).into_owned(),
            failed => {
                eprintln!("after the test: {method} {path}: {:?}", failed.map(|(status, _, _)| status));
                String::new()
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.alone.is_some() {
            self.clean();
        }
        let Some((child, directory)) = &mut self.own else { return };
        drop(child.stdin.take()); // --stop-with-stdin
        let _ = child.wait();
        if thread::panicking() {
            let log = fs::read(directory.join("log")).unwrap_or_default();
            let end = &log[log.len().saturating_sub(LOG_SHOWN)..];
            eprintln!("the end of the broker's log:\n{}", String::from_utf8_lossy(end));
        }
        let _ = fs::remove_dir_all(directory);
    }
}

fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn number_of(json: &str, name: &str) -> i64 {
    let rest = value_of(json, name);
    let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().unwrap_or_else(|_| panic!("no number {name} in {json}"))
}

fn text_of(json: &str, name: &str) -> String {
    value_of(json, name).split('"').nth(1).unwrap_or_else(|| panic!("no text {name} in {json}")).into()
}

fn value_of<'a>(json: &'a str, name: &str) -> &'a str {
    let (_, rest) = json.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {json}"));
    rest.trim_start()
}
