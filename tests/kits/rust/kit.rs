use std::collections::HashSet;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::TryStreamExt;
use pulsar::producer::Message;
use pulsar::{Consumer, Producer, Pulsar, SubType, TokioExecutor};
use tokio::time::timeout;

mod geminga;
use geminga::Broker;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const SOON: Duration = Duration::from_secs(5);

/// A broker with a client, a shared subscription `app` and a producer of the topic `r`.
struct Kit {
    broker: Broker,
    consumer: Consumer<String, TokioExecutor>,
    producer: Producer<TokioExecutor>,
    _client: Pulsar<TokioExecutor>,
}

impl Kit {
    async fn start(settings: &[&str], partitions: u32) -> Kit {
        let broker = Broker::start(settings);
        let topic = broker.topic("r");
        if partitions > 0 {
            let path = format!("/admin/v2/{}/partitions", topic.replace("://", "/"));
            broker.ask("PUT", &path, &partitions.to_string());
        }
        let client = Pulsar::builder(&broker.service_url, TokioExecutor).build().await.unwrap();
        let made =
            client.consumer().with_topic(&topic).with_subscription("app").with_subscription_type(SubType::Shared);
        let consumer = made.build().await.unwrap();
        let producer = client.producer().with_topic(&topic).build().await.unwrap();
        Kit { broker, consumer, producer, _client: client }
    }

    async fn send(&mut self, text: &str, delay: Duration) {
        self.send_at(text, SystemTime::now() + delay).await;
    }

    async fn send_at(&mut self, text: &str, moment: SystemTime) {
        let at_ms = moment.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        let message = Message { payload: text.into(), deliver_at_time: Some(at_ms), ..Default::default() };
        self.producer.send_non_blocking(message).await.unwrap().await.unwrap();
    }

    async fn receive(&mut self) -> String {
        let message = timeout(Duration::from_secs(20), self.consumer.try_next()).await.unwrap().unwrap().unwrap();
        self.consumer.ack(&message).await.unwrap();
        message.deserialize().unwrap()
    }

    async fn gets_nothing(&mut self) -> bool {
        timeout(Duration::from_millis(200), self.consumer.try_next()).await.is_err()
    }
}

/// What a call panics with.
fn refusal(call: impl FnOnce()) -> String {
    let said = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    said.downcast_ref::<String>().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_month() {
    let mut kit = Kit::start(&[], 0).await;
    kit.send("renew", 30 * DAY).await;
    kit.broker.advance(29 * DAY);
    assert!(kit.gets_nothing().await);
    assert_eq!(kit.broker.peek("r", "app", 1).unwrap().data, b"renew");
    let said = refusal(|| kit.broker.assert_delivered("r", "app", Duration::ZERO));
    assert!(said.contains("1 entries of r / app are not acknowledged, 1 of them not due yet; "), "{said}");
    // A day is left, less what the test has taken.
    assert!(said.contains("the broker's next message is due in 86"), "{said}");
    kit.broker.advance(DAY);
    assert_eq!(kit.receive().await, "renew");
    kit.broker.assert_delivered("r", "app", SOON);
    assert!(kit.broker.peek("r", "app", 1).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn due_order_and_what_is_not_due() {
    let mut kit = Kit::start(&[], 0).await;
    kit.send("year", 365 * DAY).await;
    kit.send("month", 30 * DAY).await;
    kit.send("now", Duration::ZERO).await;
    assert_eq!(kit.receive().await, "now");
    kit.broker.drain("r", "app", SOON);
    assert_eq!(kit.broker.backlog("r", "app"), 2);
    kit.broker.advance(366 * DAY);
    assert_eq!([kit.receive().await, kit.receive().await], ["month", "year"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn to_the_next() {
    let mut kit = Kit::start(&[], 0).await;
    let before = kit.broker.now();
    kit.send("later", 3 * DAY).await;
    kit.broker.advance_to_next();
    assert_eq!(kit.receive().await, "later");
    let moved = kit.broker.now().duration_since(before).unwrap();
    assert!(moved >= 3 * DAY && moved < 3 * DAY + Duration::from_secs(60), "{moved:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain() {
    let mut kit = Kit::start(&[], 0).await;
    kit.send("0", HOUR).await;
    let Kit { broker, mut consumer, mut producer, _client } = kit;
    let chain = tokio::spawn(async move {
        for number in 0..5 {
            let message = consumer.try_next().await.unwrap().unwrap();
            assert_eq!(message.deserialize().unwrap(), number.to_string());
            let at = SystemTime::now() + HOUR;
            let at_ms = at.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
            let payload = (number + 1).to_string().into_bytes();
            let next = Message { payload, deliver_at_time: Some(at_ms), ..Default::default() };
            producer.send_non_blocking(next).await.unwrap().await.unwrap();
            consumer.ack(&message).await.unwrap();
        }
        consumer
    });
    broker.advance_until_acknowledged(5 * HOUR + HOUR / 2);
    let consumer = timeout(SOON, chain).await.unwrap().unwrap();
    drop(consumer);
    assert_eq!(broker.backlog("r", "app"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_topic() {
    let mut kit = Kit::start(&[], 3).await;
    for number in 0..9 {
        kit.send(&number.to_string(), DAY).await;
    }
    assert_eq!(kit.broker.backlog("r", "app"), 9);
    kit.broker.drain("r", "app", SOON);
    kit.broker.advance(DAY);
    for _ in 0..9 {
        kit.receive().await;
    }
    kit.broker.assert_delivered("r", "app", SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_bucket_costs_nothing() {
    if std::env::var("GEMINGA_SERVICE_URL").is_ok() {
        return; // needs a broker with settings of its own
    }
    let settings = [
        "delayedDeliveryMinIndexCountPerBucket=20",
        "managedLedgerMaxEntriesPerLedger=20",
        "managedLedgerMinLedgerRolloverTimeMinutes=0",
        "delayedDeliveryTrackerFactoryClassName=\
         org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    ];
    let mut kit = Kit::start(&settings, 0).await;
    for number in 0..100 {
        kit.send(&number.to_string(), DAY).await;
    }
    kit.broker.lose_bucket("r", "app");
    kit.broker.advance(2 * DAY);
    let mut found = HashSet::new();
    while found.len() < 100 {
        found.insert(kit.receive().await);
    }
    kit.broker.assert_delivered("r", "app", SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_wire() {
    let mut kit = Kit::start(&[], 0).await;
    kit.broker.set_fault(r#"{"place": "wire", "kind": "latency", "latencyMs": 50, "command": "SEND"}"#);
    let began = Instant::now();
    kit.send("slow", Duration::ZERO).await;
    assert!(began.elapsed() >= Duration::from_millis(50));
    kit.broker.clear_faults();
    assert_eq!(kit.receive().await, "slow");
}

/// Both clocks, as the first thing that a broker sees and after moves.
#[tokio::test(flavor = "multi_thread")]
async fn absolute_times() {
    let mut kit = Kit::start(&[], 0).await;
    for _ in 0..2 {
        for is_brokers in [false, true] {
            let now = kit.broker.now();
            kit.send_at("m", if is_brokers { now } else { SystemTime::now() } + HOUR).await;
            kit.broker.advance_to(now + Duration::from_secs(59 * 60));
            assert!(kit.gets_nothing().await);
            kit.broker.advance_to(now + Duration::from_secs(61 * 60));
            assert_eq!(kit.receive().await, "m");
        }
        kit.broker.advance(400 * DAY);
    }
    let said = refusal(|| kit.broker.advance_to(SystemTime::now() + DAY));
    assert!(said.contains("Count from now() of the broker"), "{said}");
}

/// What a test leaves is deleted where the broker goes on: `clean` is all that differs there.
#[test]
fn a_broker_ends_with_its_test() {
    let broker = Broker::start(&[]);
    let (topic, web_url) = (broker.topic(""), broker.web_url.clone());
    drop(broker);
    let names = format!("{web_url}/admin/v2/namespaces/public").replace("http://", "");
    let (host, path) = names.split_once('/').unwrap();
    if std::env::var("GEMINGA_SERVICE_URL").is_err() {
        assert!(std::net::TcpStream::connect(host).is_err());
        return;
    }
    use std::io::{Read, Write};
    let mut connection = std::net::TcpStream::connect(host).unwrap();
    write!(connection, "GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("public/default")
            && !answer.contains(topic.trim_start_matches("persistent://").trim_end_matches('/'))
    );
}
