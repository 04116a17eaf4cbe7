"""Payloads as a command line takes and shows them: schemas, compression, chunks. Pure: bytes in, values out.

`decoded` and `encoded` (`schemas.py`) turn a payload into a value of its schema and a text into a payload:
AVRO with `avro.py`, JSON, key and value, primitive types as the Java client lays them out. `compression.py`
unpacks what any client has packed, `chunks.py` cuts a message that is larger than the broker takes and puts
it together again, `java_text.py` prints values as pulsar-client prints them. Read `schemas.py` first.

The pipeline has the same in columns (`pipeline/values`), with numpy and pyarrow, for millions of messages;
those are in no plain installation. Here a message is one value, and the standard library is enough, but for
ZSTD, which needs a library that has it, and for packing with anything but zlib.

Must not be broken: the bytes come from strangers. What does not fit its schema, its size or its codec is a
`CannotDecode` in words, never a crash, an endless loop or memory without a bound; the caller then shows the
payload as it is.
"""
