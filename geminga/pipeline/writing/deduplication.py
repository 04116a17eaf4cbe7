"""Whether a broker deduplicates, found out before what needs it is sent."""

from __future__ import annotations

from geminga.client.admin import topic_path
from geminga.names import TopicName
from geminga.pipeline.client.admin_http import get_json
from geminga.pipeline.client.producing import Producer
from geminga.pipeline.errors import ADMIN_URL, AdminRefused, Part, PipelineError
from geminga.pipeline.topics.options import Options


def deduplicates(producer: Producer, options: Options) -> bool:
    """True if the topic deduplicates; False if that is unknown before the first receipt, because the options
    name no admin API, or it refuses us.

    Raises `PipelineError` if deduplication is off. Nothing has been sent then.
    """
    if producer.last_sequence_id >= 0:
        return True  # where it is off, brokers keep none
    if options.admin_url is None:
        return False
    path = f"{topic_path(TopicName.parse(producer.topic))}/stats"
    try:
        stats = get_json(options.admin_access or options.access, options.admin_url, path)
    except AdminRefused:
        return False
    status = stats.get("deduplicationStatus")
    if status == "Disabled":
        raise _refusal(producer.topic, "Nothing was written")
    return bool(status == "Enabled")


def check_first_receipt(producer: Producer, last_sequence_id: int) -> None:
    """A broker that deduplicates knows what it has just stored. Raises `PipelineError` if it does not."""
    producer.flush()
    if producer.known_sequence_id() < last_sequence_id:
        raise _refusal(
            producer.topic,
            "The first batch of a task was written, as without the option ",
            ADMIN_URL,
            " only a receipt shows that",
        )


def _refusal(topic: str, *written: Part) -> PipelineError:
    return PipelineError(
        f"exactlyOnce needs deduplication, which is off for {topic}: switch it on for its namespace "
        "(pulsar-admin namespaces set-deduplication TENANT/NAMESPACE --enable, or "
        "brokerDeduplicationEnabled=true). ",
        *written,
    )
