/* The loops that run once for each message, in C. Each has a twin in Python, which its comment names: that is
 * what to read first. Equal arguments give equal results, and what a function here does not know it leaves to
 * its twin by returning None; tests/loops compares them. One build serves all Pythons from 3.11 on (abi3).
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define WITH_CRC __attribute__((target("sse4.2")))
#define CRC_OF_8(crc, word) _mm_crc32_u64(crc, word)
#define CRC_OF_1(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#define CPU_HAS_CRC() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_acle.h>
#include <sys/auxv.h>
#define WITH_CRC __attribute__((target("+crc")))
#define CRC_OF_8(crc, word) __crc32cd((uint32_t)(crc), word)
#define CRC_OF_1(crc, byte) __crc32cb((uint32_t)(crc), byte)
#define CPU_HAS_CRC() (getauxval(AT_HWCAP) & 1 << 7)
#else
#error "no CRC-32C instruction is known for this CPU: the loops stay Python"
#endif

typedef unsigned char byte_t;

enum {
    RECORD_PREFIX_BYTES = 24,
    UNLOCKED_BYTES_MIN = 64 * 1024, /* a smaller group is packed before the lock would be had again */
    PREFIX_BYTES_MAX = 64,          /* the broker's stamp has 13 or 16 */
    FIELDS_BYTES_MAX = 12,          /* a tag, a varint, a tag */
    RECEIPT_BYTES_MAX = 80,         /* 8 of sizes, 4 before the fields, 57 of fields; rounded up */
    LANE_BYTES = 336,               /* three lanes are about the usual message of 1 KiB */
};

/* What a record or a MESSAGE is made of. */
typedef struct {
    PyObject *body;
    const byte_t *bytes;
    size_t size;
    uint64_t ledger_id, entry_id;
} item_t;

typedef struct {
    uint64_t producer_id, sequence_id, num_messages, highest_sequence_id;
    const byte_t *magic, *end;
} send_t;

static PyObject *name_body, *name_peek; /* of an Entry */

static uint32_t get_u32(const byte_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static byte_t *put_u32(byte_t *at, uint64_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (byte_t)(value >> shift);
    return at;
}

static byte_t *put_bytes(byte_t *at, const void *from, size_t size)
{
    memcpy(at, from, size);
    return at + size;
}

static size_t varint_bytes(uint64_t value)
{
    size_t size = 1;
    while (value >>= 7)
        size++;
    return size;
}

static byte_t *put_varint(byte_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (byte_t)(value | 0x80);
    *at++ = (byte_t)value;
    return at;
}

/* varint.scan_varint: up to nine bytes, so below 2^63. Returns the next byte; NULL for more bytes, or where `end`
 * comes first. */
static const byte_t *get_varint(const byte_t *at, const byte_t *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 63 && at < end; shift += 7) {
        *value |= (uint64_t)(*at & 0x7F) << shift;
        if (*at++ < 0x80)
            return at;
    }
    return NULL;
}

/* varint.skip_varint: up to ten bytes; else as `get_varint`. */
static const byte_t *skip_varint(const byte_t *at, const byte_t *end)
{
    for (int count = 0; count < 10 && at < end; count++)
        if (*at++ < 0x80)
            return at;
    return NULL;
}

/* Converters of PyArg_ParseTuple: a number in [0, 2^64), and a list. 0 with an error set if it is none. */
static int get_id(PyObject *number, void *value)
{
    unsigned long long id = PyLong_AsUnsignedLongLong(number);
    *(uint64_t *)value = id;
    return !(id == UINT64_MAX && PyErr_Occurred());
}

/* The body of an item. 0 with an error set if it is no bytes; takes no reference. */
static int get_body(PyObject *body, item_t *item)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(body, &bytes, &size) < 0)
        return 0;
    if (size > UINT32_MAX / 2) {
        PyErr_SetString(PyExc_OverflowError, "a body of more than 2^31 bytes");
        return 0;
    }
    *item = (item_t){body, (const byte_t *)bytes, (size_t)size, 0, 0};
    return 1;
}

/* -- CRC-32C ------------------------------------------------------------------------------------------------ */

static uint32_t past_lane[4][256]; /* by each byte of a CRC's state: the state that a lane of zeros makes of it */

WITH_CRC static uint64_t crc_state(uint64_t state, const byte_t *at, size_t size)
{
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        state = CRC_OF_8(state, word);
    }
    for (; size; at++, size--)
        state = CRC_OF_1(state, *at);
    return state;
}

static void fill_past_lane(void)
{
    static const byte_t zeros[LANE_BYTES];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t *table = past_lane[bit / 8], value = 1u << bit % 8;
        table[value] = (uint32_t)crc_state(1u << bit, zeros, LANE_BYTES);
        for (uint32_t lower = 1; lower < value; lower++)
            table[value | lower] = table[value] ^ table[lower];
    }
}

static uint64_t after_lane(uint64_t state)
{
    return past_lane[0][state & 0xFF] ^ past_lane[1][state >> 8 & 0xFF] ^ past_lane[2][state >> 16 & 0xFF] ^
           past_lane[3][state >> 24 & 0xFF];
}

/* fastcrc's crc_32_iscsi; `crc` is that of the bytes before. The instruction takes three cycles, but one can begin
 * in each: so three lanes are summed side by side. */
WITH_CRC static uint32_t crc_32c(const byte_t *at, size_t size, uint32_t crc)
{
    uint64_t state = (uint32_t)~crc;
    for (; size >= 3 * LANE_BYTES; at += 3 * LANE_BYTES, size -= 3 * LANE_BYTES) {
        uint64_t second = 0, third = 0, words[3];
        for (const byte_t *word = at; word < at + LANE_BYTES; word += 8) {
            memcpy(&words[0], word, 8);
            memcpy(&words[1], word + LANE_BYTES, 8);
            memcpy(&words[2], word + 2 * LANE_BYTES, 8);
            state = CRC_OF_8(state, words[0]);
            second = CRC_OF_8(second, words[1]);
            third = CRC_OF_8(third, words[2]);
        }
        state = after_lane(after_lane(state) ^ second) ^ third;
    }
    return ~(uint32_t)crc_state(state, at, size);
}

/* -- the journal -------------------------------------------------------------------------------------------- */

/* One record as records.pack_records makes it. */
static byte_t *put_record(byte_t *at, const item_t *item)
{
    byte_t *head = at;
    at = put_u32(at, item->size);
    at = put_u32(put_u32(at, item->ledger_id >> 32), item->ledger_id);
    at = put_u32(put_u32(at, item->entry_id >> 32), item->entry_id);
    at = put_u32(at, crc_32c(item->bytes, item->size, crc_32c(head, (size_t)(at - head), 0)));
    return put_bytes(at, item->bytes, item->size);
}

/* The parts of a batch, borrowed. 0 with an error set if it is none. */
static int get_batch(PyObject *batch, uint64_t *ledger_id, uint64_t *first, PyObject **bodies)
{
    if (PyTuple_Check(batch))
        return PyArg_ParseTuple(batch, "O&O&O!", get_id, ledger_id, get_id, first, &PyList_Type, bodies);
    PyErr_SetString(PyExc_TypeError, "a batch is (ledger id, first entry id, bodies)");
    return 0;
}

/* journal_format.join_records(head, batches): the head and the records of all batches, as bytes. The interpreter's
 * lock is given up for the copies and sums, so each body is held by a reference. */
static PyObject *pack_records(PyObject *self, PyObject *args)
{
    PyObject *head, *batches, *bodies, *group = NULL;
    uint64_t ledger_id, first;
    size_t count = 0, count_max = 0, size;
    if (!PyArg_ParseTuple(args, "SO!", &head, &PyList_Type, &batches))
        return NULL;
    for (Py_ssize_t n = 0; n < PyList_Size(batches); n++) {
        if (!get_batch(PyList_GetItem(batches, n), &ledger_id, &first, &bodies))
            return NULL;
        count_max += (size_t)PyList_Size(bodies);
    }
    item_t *items = PyMem_Calloc(count_max, sizeof(item_t));
    if (!items)
        return PyErr_NoMemory();
    size = (size_t)PyBytes_Size(head);
    for (Py_ssize_t n = 0; n < PyList_Size(batches); n++) {
        if (!get_batch(PyList_GetItem(batches, n), &ledger_id, &first, &bodies))
            goto end;
        for (Py_ssize_t at = 0; at < PyList_Size(bodies) && count < count_max; at++) {
            item_t *item = &items[count];
            if (!get_body(PyList_GetItem(bodies, at), item))
                goto end;
            item->ledger_id = ledger_id;
            item->entry_id = first + (uint64_t)at;
            size += RECORD_PREFIX_BYTES + item->size;
            Py_INCREF(item->body);
            count++;
        }
    }
    if ((group = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size))) {
        byte_t *at = (byte_t *)PyBytes_AsString(group);
        at = put_bytes(at, PyBytes_AsString(head), (size_t)PyBytes_Size(head));
        PyThreadState *state = size >= UNLOCKED_BYTES_MIN ? PyEval_SaveThread() : NULL;
        for (size_t n = 0; n < count; n++)
            at = put_record(at, &items[n]);
        if (state)
            PyEval_RestoreThread(state);
    }
end:
    while (count)
        Py_DECREF(items[--count].body);
    PyMem_Free(items);
    return group;
}

/* -- SEND --------------------------------------------------------------------------------------------------- */

/* decoder._scan_send, with the frame's sizes before it. Returns whether a whole, usual SEND is at `at`. */
static int scan_send(const byte_t *at, const byte_t *data_end, Py_ssize_t frame_bytes_max, send_t *send)
{
    if (data_end - at < 16)
        return 0;
    uint32_t total = get_u32(at), command_size = get_u32(at + 4);
    if (total < 12 || total > data_end - at - 4 || total > frame_bytes_max)
        return 0;
    const byte_t *end = at + 4 + total, *command_end = at + 8 + command_size;
    at += 8;
    /* 08 06 | 32 size | 08 producer id | 10 sequence id | [18 messages] | [30 highest sequence id] */
    if (command_size < 8 || command_size > 0x7F || command_size > total - 4 || memcmp(at, "\x08\x06\x32", 3) ||
        at[3] != command_size - 4 || at[4] != 0x08)
        return 0;
    at = get_varint(at + 5, at + 7, &send->producer_id);
    if (!at || *at != 0x10 || !(at = get_varint(at + 1, command_end, &send->sequence_id)))
        return 0;
    send->num_messages = 1;
    send->highest_sequence_id = 0;
    if (at < command_end && *at == 0x18 && !(at = get_varint(at + 1, command_end, &send->num_messages)))
        return 0;
    if (at < command_end && *at == 0x30 && !(at = get_varint(at + 1, command_end, &send->highest_sequence_id)))
        return 0;
    /* 0e 01 | checksum | metadata size | metadata, payload */
    if (at != command_end || send->num_messages > INT32_MAX || end - at < 10 || at[0] != 0x0E || at[1] != 0x01)
        return 0;
    send->magic = at;
    send->end = end;
    return get_u32(at + 6) <= end - at - 10 && crc_32c(at + 6, (size_t)(end - at - 6), 0) == get_u32(at + 2);
}

/* Append what was just made, and give its reference to the list. 0 with an error set. */
static int append(PyObject *list, PyObject *made)
{
    int done = made && PyList_Append(list, made) == 0;
    Py_XDECREF(made);
    return done;
}

/* A new reference to the prefix and the bytes behind it; NULL with an error set. */
static PyObject *joined(PyObject *prefix, const byte_t *bytes, size_t size)
{
    size_t prefix_bytes = (size_t)PyBytes_Size(prefix);
    PyObject *both = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(prefix_bytes + size));
    if (both)
        put_bytes(put_bytes((byte_t *)PyBytes_AsString(both), PyBytes_AsString(prefix), prefix_bytes), bytes, size);
    return both;
}

/* The usual SENDs of one producer that follow each other in `data` from `at` on, as Decoder.feed would give them one
 * by one; None if there is none at `at`. Returns (offset behind the last, producer id, sequence ids, numbers of
 * messages, highest sequence ids or 0, bodies behind `prefix`). */
static PyObject *scan_sends(PyObject *self, PyObject *args)
{
    PyObject *data, *prefix, *lists[4] = {NULL}, *result = NULL;
    Py_ssize_t offset, frame_bytes_max, entries_max, count = 0;
    uint64_t producer_id = 0;
    send_t send;
    if (!PyArg_ParseTuple(args, "SnnnS", &data, &offset, &frame_bytes_max, &entries_max, &prefix))
        return NULL;
    if (PyBytes_Size(prefix) > PREFIX_BYTES_MAX)
        return PyErr_Format(PyExc_ValueError, "a prefix of %zd bytes", PyBytes_Size(prefix));
    const byte_t *begin = (const byte_t *)PyBytes_AsString(data), *data_end = begin + PyBytes_Size(data);
    if (offset < 0 || offset > data_end - begin)
        return PyErr_Format(PyExc_ValueError, "offset %zd in %zd bytes", offset, data_end - begin);
    const byte_t *at = begin + offset;
    while (count < entries_max && scan_send(at, data_end, frame_bytes_max, &send)) {
        if (count && send.producer_id != producer_id)
            break;
        producer_id = send.producer_id;
        for (int n = 0; !count && n < 4; n++)
            if (!(lists[n] = PyList_New(0)))
                goto end;
        if (!append(lists[0], PyLong_FromUnsignedLongLong(send.sequence_id)) ||
            !append(lists[1], PyLong_FromUnsignedLongLong(send.num_messages)) ||
            !append(lists[2], PyLong_FromUnsignedLongLong(send.highest_sequence_id)) ||
            !append(lists[3], joined(prefix, send.magic, (size_t)(send.end - send.magic))))
            goto end;
        at = send.end;
        count++;
    }
    if (!count)
        Py_RETURN_NONE;
    result = Py_BuildValue("nKOOOO", (Py_ssize_t)(at - begin), (unsigned long long)producer_id, lists[0], lists[1],
                           lists[2], lists[3]);
end:
    for (int n = 0; n < 4; n++)
        Py_XDECREF(lists[n]);
    return result;
}

/* -- receipts and messages ---------------------------------------------------------------------------------- */

/* hot_encoder.ReceiptEncoder.encode for entries that follow each other, as one bytes. `producer` and `ledger` are
 * 08 id 10. A highest sequence id of 0: none. */
static PyObject *receipts(PyObject *self, PyObject *args)
{
    const char *producer, *ledger;
    Py_ssize_t producer_bytes, ledger_bytes, count;
    PyObject *sequence_ids, *highest_ids, *frames = NULL;
    uint64_t entry_id, sequence_id, highest_id;
    if (!PyArg_ParseTuple(args, "y#y#O!O!O&", &producer, &producer_bytes, &ledger, &ledger_bytes, &PyList_Type,
                          &sequence_ids, &PyList_Type, &highest_ids, get_id, &entry_id))
        return NULL;
    count = PyList_Size(sequence_ids);
    if (producer_bytes > FIELDS_BYTES_MAX || ledger_bytes > FIELDS_BYTES_MAX || PyList_Size(highest_ids) != count)
        return PyErr_Format(PyExc_ValueError, "no ids, or %zd of one kind and %zd of the other", count,
                            PyList_Size(highest_ids));
    byte_t *begin = PyMem_Malloc((size_t)count * RECEIPT_BYTES_MAX), *at = begin;
    if (!begin)
        return PyErr_NoMemory();
    for (Py_ssize_t n = 0; n < count; n++, entry_id++) {
        if (!get_id(PyList_GetItem(sequence_ids, n), &sequence_id) ||
            !get_id(PyList_GetItem(highest_ids, n), &highest_id))
            goto end;
        size_t id_size = (size_t)ledger_bytes + varint_bytes(entry_id);
        size_t size = (size_t)producer_bytes + varint_bytes(sequence_id) + 2 + id_size;
        if (highest_id)
            size += 1 + varint_bytes(highest_id);
        at = put_u32(put_u32(at, size + 8), size + 4);
        at = put_varint(put_bytes(at, "\x08\x07\x3a", 3), size);
        at = put_varint(put_bytes(at, producer, (size_t)producer_bytes), sequence_id);
        at = put_varint(put_bytes(at, "\x1a", 1), id_size);
        at = put_varint(put_bytes(at, ledger, (size_t)ledger_bytes), entry_id);
        if (highest_id)
            at = put_varint(put_bytes(at, "\x20", 1), highest_id);
    }
    frames = PyBytes_FromStringAndSize((const char *)begin, at - begin);
end:
    PyMem_Free(begin);
    return frames;
}

/* The parts of a MESSAGE. 0 if it is none of these: then an error may be set. */
static int get_message(PyObject *position, PyObject *body, int keep_stamp, item_t *item)
{
    if (!PyTuple_Check(position) || PyTuple_Size(position) != 2) {
        PyErr_SetString(PyExc_TypeError, "a position is (ledger id, entry id)");
        return 0;
    }
    if (!get_body(body, item) || !get_id(PyTuple_GetItem(position, 0), &item->ledger_id) ||
        !get_id(PyTuple_GetItem(position, 1), &item->entry_id))
        return 0;
    if (keep_stamp || item->size < 2 || item->bytes[0] != 0x0E || item->bytes[1] != 0x02)
        return 1;
    /* stored_entry.stamp_bytes: 0e 02 | size | stamp */
    if (item->size < 6 || get_u32(item->bytes + 2) > item->size - 6)
        return 0;
    size_t skip = 6 + get_u32(item->bytes + 2);
    item->bytes += skip;
    item->size -= skip;
    return 1;
}

/* hot_encoder.MessageEncoder.encode for entries at any positions, without the optional fields: (all frames as one
 * bytes, the bytes of the entries in them). `consumer` is 08 id, `partition` is 18 index or empty. None if an entry
 * has `body_bytes_max` bytes or more, or less than its stamp. */
static PyObject *messages(PyObject *self, PyObject *args)
{
    const char *consumer, *partition;
    Py_ssize_t consumer_bytes, partition_bytes, count, body_bytes_max;
    PyObject *positions, *bodies, *frames = NULL, *result = NULL;
    int keep_stamp;
    if (!PyArg_ParseTuple(args, "y#y#O!O!pn", &consumer, &consumer_bytes, &partition, &partition_bytes, &PyList_Type,
                          &positions, &PyList_Type, &bodies, &keep_stamp, &body_bytes_max))
        return NULL;
    count = PyList_Size(positions);
    if (consumer_bytes > FIELDS_BYTES_MAX || partition_bytes > FIELDS_BYTES_MAX || PyList_Size(bodies) != count)
        return PyErr_Format(PyExc_ValueError, "no ids, or %zd positions and %zd bodies", count, PyList_Size(bodies));
    item_t *items = PyMem_Calloc((size_t)count, sizeof(item_t));
    if (!items)
        return PyErr_NoMemory();
    size_t size = 0, payload_bytes = 0, fields = (size_t)consumer_bytes + (size_t)partition_bytes;
    for (Py_ssize_t n = 0; n < count; n++) {
        item_t *item = &items[n];
        if (!get_message(PyList_GetItem(positions, n), PyList_GetItem(bodies, n), keep_stamp, item) ||
            PyBytes_Size(item->body) >= body_bytes_max)
            goto end;
        size += 8 + 4 + 4 + fields + varint_bytes(item->ledger_id) + varint_bytes(item->entry_id) + item->size;
        payload_bytes += item->size;
    }
    if (!(frames = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)))
        goto end;
    byte_t *at = (byte_t *)PyBytes_AsString(frames);
    for (const item_t *item = items; item < items + count; item++) {
        size_t id_size = 2 + varint_bytes(item->ledger_id) + varint_bytes(item->entry_id) + (size_t)partition_bytes;
        size_t command_size = (size_t)consumer_bytes + 2 + id_size;
        at = put_u32(put_u32(at, command_size + 8 + item->size), command_size + 4);
        at = put_varint(put_bytes(at, "\x08\x09\x4a", 3), command_size);
        at = put_bytes(at, consumer, (size_t)consumer_bytes);
        at = put_varint(put_bytes(at, "\x12", 1), id_size);
        at = put_varint(put_bytes(at, "\x08", 1), item->ledger_id);
        at = put_varint(put_bytes(at, "\x10", 1), item->entry_id);
        at = put_bytes(put_bytes(at, partition, (size_t)partition_bytes), item->bytes, item->size);
    }
    result = Py_BuildValue("On", frames, (Py_ssize_t)payload_bytes);
end:
    PyMem_Free(items);
    Py_XDECREF(frames);
    if (!result && !PyErr_Occurred())
        Py_RETURN_NONE;
    return result;
}

/* -- ACK ---------------------------------------------------------------------------------------------------- */

/* The id at `at`: 1a size | 08 ledger id | 10 entry id | [18 partition] | [20 batch index]. Returns its end; NULL for
 * any other shape. */
static const byte_t *scan_position(const byte_t *at, const byte_t *end, uint64_t *ledger_id, uint64_t *entry_id)
{
    if (end - at < 6 || at[1] >= 0x80 || at[1] > end - at - 2 || at[2] != 0x08)
        return NULL;
    end = at + 2 + at[1];
    if (!(at = get_varint(at + 3, end, ledger_id)) || at == end || *at != 0x10)
        return NULL;
    if (!(at = get_varint(at + 1, end, entry_id)))
        return NULL;
    if (at < end && *at == 0x18 && !(at = skip_varint(at + 1, end)))
        return NULL;
    if (at < end && *at == 0x20 && !(at = skip_varint(at + 1, end)))
        return NULL;
    return at == end ? end : NULL;
}

/* scan_ack.scan_ack(data, consumer id, at, end) without the consumer id: (is cumulative, positions, request id or
 * None), or None for any other shape. */
static PyObject *scan_ack(PyObject *self, PyObject *args)
{
    PyObject *data, *positions, *result = NULL;
    Py_ssize_t from, to;
    uint64_t ledger_id, entry_id, request_id = 0;
    if (!PyArg_ParseTuple(args, "Snn", &data, &from, &to))
        return NULL;
    if (from < 0 || to < from || to > PyBytes_Size(data))
        return PyErr_Format(PyExc_ValueError, "an ACK from %zd to %zd in %zd bytes", from, to, PyBytes_Size(data));
    const byte_t *at = (const byte_t *)PyBytes_AsString(data) + from, *end = at + (to - from);
    if (at == end || *at > 1)
        Py_RETURN_NONE;
    int is_cumulative = *at++, has_request = 0;
    if (!(positions = PyList_New(0)))
        return NULL;
    while (at && at < end && *at == 0x1A)
        if ((at = scan_position(at, end, &ledger_id, &entry_id)))
            if (!append(positions, Py_BuildValue("KK", (unsigned long long)ledger_id, (unsigned long long)entry_id)))
                goto end;
    if (at && at < end && (has_request = *at == 0x40))
        at = get_varint(at + 1, end, &request_id);
    Py_ssize_t count = PyList_Size(positions);
    if (at != end || count == 0 || (is_cumulative && count != 1))
        result = Py_NewRef(Py_None);
    else if (has_request)
        result = Py_BuildValue("NOK", PyBool_FromLong(is_cumulative), positions, (unsigned long long)request_id);
    else
        result = Py_BuildValue("NOO", PyBool_FromLong(is_cumulative), positions, Py_None);
end:
    Py_DECREF(positions);
    return result;
}

/* -- metadata ----------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t publish_ms, num_messages, compression, uncompressed;
    int is_batch;
} metadata_t;

/* message_metadata.peek for the usual stamp, and metadata without a key, a due time or any other field that few
 * messages have. Returns whether the entry is such a one. */
static int get_metadata(const byte_t *at, size_t size, metadata_t *found)
{
    /* 0e 02 | 0 0 0 7 | 08 time (6 bytes) || 0e 01 | checksum | size || 0a name | 10 sequence id | 18 publish time */
    if (size < 23 || memcmp(at, "\x0e\x02\0\0\0\x07\x08", 7) || at[13] != 0x0E || at[14] != 0x01 ||
        get_u32(at + 19) > size - 23)
        return 0;
    const byte_t *end = at + 23 + get_u32(at + 19);
    at += 23;
    if (end - at < 2 || at[0] != 0x0A || at[1] > 0x7F || at[1] > end - at - 2)
        return 0;
    at += 2 + at[1];
    if (at == end || *at != 0x10 || !(at = skip_varint(at + 1, end)))
        return 0;
    if (at == end || *at != 0x18 || !(at = get_varint(at + 1, end, &found->publish_ms)))
        return 0;
    found->num_messages = 1;
    found->compression = found->uncompressed = 0;
    found->is_batch = 0;
    while (at < end) {
        uint64_t value;
        byte_t tag = *at;
        if (!(at = get_varint(at + 1, end, &value)))
            return 0;
        if (tag == 0x40 && value <= 4)
            found->compression = value;
        else if (tag == 0x48 && value <= UINT32_MAX)
            found->uncompressed = value;
        else if (tag == 0x58 && value <= INT32_MAX) {
            found->num_messages = value;
            found->is_batch = 1;
        } else
            return 0;
    }
    return 1;
}

/* Entry.parsed for all entries whose `peek` is None, with metadata as in `get_metadata`; the others stay as they
 * are. `kind` is the class Peek. */
static PyObject *peek_entries(PyObject *self, PyObject *args)
{
    PyObject *entries, *kind;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &entries, &kind))
        return NULL;
    for (Py_ssize_t n = 0; n < PyList_Size(entries); n++) {
        PyObject *entry = PyList_GetItem(entries, n), *known, *body = NULL, *made = NULL;
        metadata_t found;
        item_t item;
        int is_done = 0;
        Py_INCREF(entry);
        if (!(known = PyObject_GetAttr(entry, name_peek)))
            goto next;
        is_done = known != Py_None;
        if (is_done || !(body = PyObject_GetAttr(entry, name_body)) || !get_body(body, &item))
            goto next;
        is_done = !get_metadata(item.bytes, item.size, &found);
        if (is_done)
            goto next;
        made = PyObject_CallFunction(kind, "OKOOiKOKK", body, (unsigned long long)found.publish_ms, Py_None, Py_None, 0,
                                     (unsigned long long)found.num_messages, found.is_batch ? Py_True : Py_False,
                                     (unsigned long long)found.compression, (unsigned long long)found.uncompressed);
        is_done = made && PyObject_SetAttr(entry, name_peek, made) == 0;
    next:
        Py_XDECREF(made);
        Py_XDECREF(body);
        Py_XDECREF(known);
        Py_DECREF(entry);
        if (!is_done)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"pack_records", pack_records, METH_VARARGS, NULL},
    {"scan_sends", scan_sends, METH_VARARGS, NULL},
    {"receipts", receipts, METH_VARARGS, NULL},
    {"messages", messages, METH_VARARGS, NULL},
    {"scan_ack", scan_ack, METH_VARARGS, NULL},
    {"peek_entries", peek_entries, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_geminga_loops", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__geminga_loops(void)
{
    if (!CPU_HAS_CRC()) {
        PyErr_SetString(PyExc_ImportError, "this CPU has no instruction for CRC-32C");
        return NULL;
    }
    fill_past_lane();
    if (!(name_body = PyUnicode_InternFromString("body")) || !(name_peek = PyUnicode_InternFromString("peek")))
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddStringConstant(made, "SOURCE", SOURCE) < 0)
        Py_CLEAR(made);
    return made;
}
