/* The compiled forms of the functions that every message runs through. compiled.py chooses; docs/adr/0071 says why.

   Each function but `write`, `calls` and `crc32c_by_table` has a twin in Python of the same name, whose docstring
   defines it: same arguments, all by position, same results, same bytes. Where a twin raises struct.error for a number
   that does not fit, these raise OverflowError. docs/format.md describes the bytes.

   The GIL: kept for all that is short. Long checksums, batches and writes drop it; small writes do so in shared time.

   Nothing here opens, syncs or truncates, and `write` is called by OsFile.write_at alone. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE /* pwritev */
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define INTERFACE 4 /* compiled.py: raised with each repair, and each change of arguments or results */

enum { RELEASE_BYTES = 32 * 1024 }; /* a checksum of less takes less time than handing the GIL over and back */
enum { KEEP_BYTES = 4096 };         /* into the page cache: handing the GIL over takes longer than the write */
enum { ROUND_NS = 1000 * 1000, SHARED_NS = 150 * 1000 }; /* the shared time begins each round */
enum { ON_STACK = 16 };             /* buffers of one write that need no memory */
enum { TURN_MASK = 1023 };          /* each 1,024 messages that are encoded, another thread may have its turn */

/* Proofs print it, and fail if it is zero. Changed with the GIL held only. */
static unsigned long long calls_count;

/* -- CRC-32C ------------------------------------------------------------------------------------------------------ */

#define POLYNOMIAL 0x82F63B78u /* reflected */

static uint32_t slices[8][256]; /* slices[k][b]: the checksum of byte b with k zero bytes behind it */

static void make_slices(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        slices[0][byte] = crc;
    }
    for (int byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++)
            slices[k][byte] = (slices[k - 1][byte] >> 8) ^ slices[0][slices[k - 1][byte] & 0xFF];
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *at, size_t size)
{
    while (size >= 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = slices[7][low & 0xFF] ^ slices[6][low >> 8 & 0xFF] ^ slices[5][low >> 16 & 0xFF] ^ slices[4][low >> 24]
            ^ slices[3][at[4]] ^ slices[2][at[5]] ^ slices[1][at[6]] ^ slices[0][at[7]];
        at += 8;
        size -= 8;
    }
    while (size--)
        crc = (crc >> 8) ^ slices[0][(crc ^ *at++) & 0xFF];
    return crc;
}

#if (defined(__x86_64__) || defined(__AARCH64EL__)) && defined(__GNUC__)
#define HAS_INSTRUCTION 1
#if defined(__x86_64__)
#include <cpuid.h>
#define SUM_WORD "crc32q %1, %q0"
#define SUM_BYTE "crc32b %b1, %k0"
static int has_instruction(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
}
#else
#define SUM_WORD ".arch_extension crc\n\tcrc32cx %w0, %w0, %x1"
#define SUM_BYTE ".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
#if defined(__APPLE__)
static int has_instruction(void) { return 1; } /* each of its processors of this kind has it */
#else
#include <sys/auxv.h>
static int has_instruction(void) { return (getauxval(AT_HWCAP) & (1 << 7)) != 0; } /* HWCAP_CRC32 */
#endif
#endif

static inline uint32_t with_word(uint32_t crc, uint64_t word)
{
    __asm__(SUM_WORD : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint32_t with_byte(uint32_t crc, uint32_t byte)
{
    __asm__(SUM_BYTE : "+r"(crc) : "r"(byte));
    return crc;
}

/* One instruction takes three cycles, and three of them run at once if they do not wait for each other. So three
   stretches are summed side by side and joined: what a number of zero bytes does to a checksum is a table. */
enum { SHORT_STRETCH = 128, LONG_STRETCH = 2048 };

typedef uint32_t Zeros[4][256];
static Zeros short_zeros, long_zeros;

static void make_zeros(Zeros zeros, size_t count)
{
    static const uint8_t none[LONG_STRETCH];
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++)
            zeros[place][byte] = crc_by_table(byte << 8 * place, none, count);
}

static inline uint32_t behind_zeros(Zeros zeros, uint32_t crc)
{
    return zeros[0][crc & 0xFF] ^ zeros[1][crc >> 8 & 0xFF] ^ zeros[2][crc >> 16 & 0xFF] ^ zeros[3][crc >> 24];
}

static inline uint64_t word_at(const uint8_t *at)
{
    uint64_t word; /* these processors are little-endian, as the bytes are */
    return memcpy(&word, at, sizeof word), word;
}

#define SUM_STRETCHES(STRETCH, ZEROS)                                                                                  \
    while (size >= 3 * STRETCH) {                                                                                      \
        uint32_t second = 0, third = 0;                                                                                \
        for (const uint8_t *end = at + STRETCH; at < end; at += 8) {                                                   \
            crc = with_word(crc, word_at(at));                                                                         \
            second = with_word(second, word_at(at + STRETCH));                                                         \
            third = with_word(third, word_at(at + 2 * STRETCH));                                                       \
        }                                                                                                              \
        crc = behind_zeros(ZEROS, crc) ^ second;                                                                       \
        crc = behind_zeros(ZEROS, crc) ^ third;                                                                        \
        at += 2 * STRETCH;                                                                                             \
        size -= 3 * STRETCH;                                                                                           \
    }

static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *at, size_t size)
{
    SUM_STRETCHES(LONG_STRETCH, long_zeros)
    SUM_STRETCHES(SHORT_STRETCH, short_zeros)
    for (; size >= 8; at += 8, size -= 8)
        crc = with_word(crc, word_at(at));
    while (size--)
        crc = with_byte(crc, *at++);
    return crc;
}
#endif

static uint32_t (*crc_of_bytes)(uint32_t, const uint8_t *, size_t) = crc_by_table;

static void choose_crc(void)
{
    make_slices();
#if HAS_INSTRUCTION
    make_zeros(short_zeros, SHORT_STRETCH), make_zeros(long_zeros, LONG_STRETCH);
    crc_of_bytes = has_instruction() ? crc_by_instruction : crc_by_table;
#endif
}

/* The GIL is held by the caller, who keeps the bytes alive. */
static uint32_t crc_from(uint32_t seed, const uint8_t *at, size_t size)
{
    uint32_t crc;
    if (size < RELEASE_BYTES)
        return ~crc_of_bytes(~seed, at, size);
    Py_BEGIN_ALLOW_THREADS
    crc = ~crc_of_bytes(~seed, at, size);
    Py_END_ALLOW_THREADS
    return crc;
}

/* -- Arguments ---------------------------------------------------------------------------------------------------- */

static int begin(const char *name, Py_ssize_t given, Py_ssize_t wanted)
{
    calls_count++;
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments by position, not %zd", name, wanted, given);
    return -1;
}

/* Each sets a Python error and returns -1, or returns 0. */
static int number_of(PyObject *object, uint64_t largest, uint64_t *number)
{
    *number = PyLong_AsUnsignedLongLong(object);
    if (*number == UINT64_MAX && PyErr_Occurred())
        return -1;
    if (*number <= largest)
        return 0;
    PyErr_SetString(PyExc_OverflowError, "a number does not fit into its field");
    return -1;
}

static int numbers_of(PyObject *const *arguments, const uint64_t *largest, int count, uint64_t *numbers)
{
    for (int i = 0; i < count; i++)
        if (number_of(arguments[i], largest[i], &numbers[i]) < 0)
            return -1;
    return 0;
}

static int bytes_of(PyObject *object, const uint8_t **start, Py_ssize_t *size)
{
    char *at;
    if (PyBytes_AsStringAndSize(object, &at, size) < 0)
        return -1;
    *start = (const uint8_t *)at;
    return 0;
}

static inline void put(uint8_t *at, uint64_t value, int width)
{
    for (; width--; value >>= 8)
        *at++ = (uint8_t)value;
}

static inline uint32_t get16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static inline uint32_t get32(const uint8_t *at) { return get16(at) | get16(at + 2) << 16; }
static inline uint64_t get64(const uint8_t *at) { return get32(at) | (uint64_t)get32(at + 4) << 32; }

/* -- Checksums ---------------------------------------------------------------------------------------------------- */

#define ARGUMENTS PyObject *module, PyObject *const *arguments, Py_ssize_t given
typedef uint32_t Sum(uint32_t, const uint8_t *, size_t);

static PyObject *checksum(const char *name, Sum *sum, PyObject *const *arguments, Py_ssize_t given)
{
    uint64_t seed;
    Py_buffer view;
    if (begin(name, given, 2) < 0 || number_of(arguments[0], UINT32_MAX, &seed) < 0
        || PyObject_GetBuffer(arguments[1], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t crc = sum((uint32_t)seed, view.buf, (size_t)view.len);
    return PyBuffer_Release(&view), PyLong_FromUnsignedLong(crc);
}

static PyObject *crc32c(ARGUMENTS) { return checksum("crc32c", crc_from, arguments, given); }

static uint32_t crc_from_table(uint32_t seed, const uint8_t *at, size_t size) { return ~crc_by_table(~seed, at, size); }

/* crc32c for processors without an instruction for it: so that it is tested on those with one. */
static PyObject *crc32c_by_table(ARGUMENTS) { return checksum("crc32c_by_table", crc_from_table, arguments, given); }

/* -- Frames: encoding --------------------------------------------------------------------------------------------- */

/* Places in a frame, and values, as constants.py names them. */
enum { SIZE_END = 5, BODY_AT = 9, FLAGS_AT = 10, HEADERS_SIZE_AT = 12, COUNT_AT = 14, INDEX_AT = 16, MARK_AT = 20 };
enum { TIMESTAMP_AT = 24, HEADER_BYTES = 32, RECORD_SIZE_MIN = HEADER_BYTES - SIZE_END };
enum { STX = 2, KIND_MESSAGE = 1, FIRST = 1, LAST = 2, HEADERS = 4 };

/* Fields that the messages of one batch share: salt, index of the first, durable mark, timestamp. */
static const uint64_t shared_largest[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX};

/* Return the bytes of a frame in front of its payload, a new reference; NULL with an error set. */
static PyObject *frame_head(const uint64_t *shared, uint64_t number, unsigned flags, PyObject *headers,
                            PyObject *payload)
{
    const uint8_t *stored = NULL, *content;
    Py_ssize_t stored_size = 0, content_size;
    if (bytes_of(payload, &content, &content_size) < 0 || (headers && bytes_of(headers, &stored, &stored_size) < 0))
        return NULL;
    uint64_t size = RECORD_SIZE_MIN + (uint64_t)stored_size + (uint64_t)content_size, index = shared[1] + number;
    if (stored_size > UINT16_MAX || size > UINT32_MAX || index > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a frame does not fit into its fields");
        return NULL;
    }
    PyObject *head = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + stored_size);
    if (head == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(head);
    at[0] = STX;
    put(at + 1, size, 4);
    at[BODY_AT] = KIND_MESSAGE;
    put(at + FLAGS_AT, flags | (stored_size ? HEADERS : 0u), 2);
    put(at + HEADERS_SIZE_AT, (uint64_t)stored_size, 2);
    put(at + COUNT_AT, 1, 2);
    put(at + INDEX_AT, index, 4);
    put(at + MARK_AT, shared[2], 4);
    put(at + TIMESTAMP_AT, shared[3], 8);
    if (stored_size)
        memcpy(at + HEADER_BYTES, stored, (size_t)stored_size);
    uint32_t crc = crc_from((uint32_t)(shared[0] ^ size), at + BODY_AT, (size_t)(HEADER_BYTES - BODY_AT + stored_size));
    put(at + SIZE_END, crc_from(crc, content, (size_t)content_size), 4);
    return head;
}

static PyObject *encode_message(ARGUMENTS)
{
    uint64_t shared[4];
    if (begin("encode_message", given, 6) < 0 || numbers_of(arguments, shared_largest, 4, shared) < 0)
        return NULL;
    PyObject *head = frame_head(shared, 0, FIRST | LAST, arguments[4], arguments[5]);
    PyObject *buffers = head == NULL ? NULL : PyTuple_Pack(2, head, arguments[5]);
    return Py_XDECREF(head), buffers;
}

static PyObject *encode_messages(ARGUMENTS)
{
    uint64_t shared[4];
    if (begin("encode_messages", given, 8) < 0 || numbers_of(arguments, shared_largest, 4, shared) < 0)
        return NULL;
    int any = PyObject_IsTrue(arguments[4]), first = PyObject_IsTrue(arguments[6]), end = PyObject_IsTrue(arguments[7]);
    if (first < 0 || end < 0 || any < 0)
        return NULL;
    PyObject *headers = NULL, *payloads = NULL, *buffers = NULL;
    if (any && ((headers = PyDict_New()) == NULL || PyDict_Update(headers, arguments[4]) < 0))
        goto failed; /* it is ours, so that no other thread changes it meanwhile */
    if ((payloads = PySequence_Tuple(arguments[5])) == NULL || (buffers = PyList_New(0)) == NULL)
        goto failed;
    Py_ssize_t count = PyTuple_Size(payloads);
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *payload = PyTuple_GetItem(payloads, number);
        if ((number & TURN_MASK) == TURN_MASK)
            PyEval_RestoreThread(PyEval_SaveThread());
        PyObject *key = headers == NULL ? NULL : PyLong_FromSsize_t(number);
        PyObject *stored = key == NULL ? NULL : PyDict_GetItemWithError(headers, key); /* borrowed */
        Py_XDECREF(key);
        if (PyErr_Occurred())
            goto failed;
        unsigned flags = (first && number == 0 ? FIRST : 0u) | (end && number == count - 1 ? LAST : 0u);
        PyObject *head = frame_head(shared, (uint64_t)number, flags, stored, payload);
        if (head == NULL)
            goto failed;
        int status = PyList_Append(buffers, head);
        Py_DECREF(head);
        if (status < 0 || PyList_Append(buffers, payload) < 0)
            goto failed;
    }
    goto done;
failed:
    Py_CLEAR(buffers);
done:
    Py_XDECREF(headers);
    Py_XDECREF(payloads);
    return buffers;
}

/* -- Frames: scanning --------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *start; /* of a bytes object that the caller holds */
    int64_t at, stop;
    uint32_t salt;
} Scan;

typedef struct {
    const uint8_t *start;
    int64_t end; /* in the data */
    uint32_t kind, flags, headers_size, count, index, mark;
    uint64_t timestamp;
    int64_t payload_size;
} Frame;

enum Found { CUT_OFF, BAD, GOOD };

/* Look at the frame at `at`, which does not move; CUT_OFF: it does not end in front of `stop`. */
static enum Found frame_at(const Scan *scan, Frame *frame)
{
    if (scan->stop - scan->at < HEADER_BYTES) /* so that no sum overflows */
        return CUT_OFF;
    const uint8_t *start = frame->start = scan->start + scan->at;
    uint32_t size = get32(start + 1);
    frame->end = scan->at + SIZE_END + size;
    if (frame->end > scan->stop)
        return CUT_OFF;
    frame->headers_size = get16(start + HEADERS_SIZE_AT);
    frame->payload_size = (int64_t)size - RECORD_SIZE_MIN - frame->headers_size;
    if (start[0] != STX || frame->payload_size < 0)
        return BAD;
    if (crc_from(scan->salt ^ size, start + BODY_AT, size - (BODY_AT - SIZE_END)) != get32(start + SIZE_END))
        return BAD;
    frame->kind = start[BODY_AT];
    frame->flags = get16(start + FLAGS_AT);
    frame->count = get16(start + COUNT_AT);
    frame->index = get32(start + INDEX_AT);
    frame->mark = get32(start + MARK_AT);
    frame->timestamp = get64(start + TIMESTAMP_AT);
    return GOOD;
}

/* Positions and counts of a scan are 63 bits wide; a stop behind the data is its end. */
static int begin_scan(Scan *scan, PyObject *data, PyObject *at, PyObject *stop, PyObject *salt)
{
    uint64_t numbers[3] = {0, INT64_MAX, 0};
    Py_ssize_t size;
    if (bytes_of(data, &scan->start, &size) < 0 || number_of(at, INT64_MAX, &numbers[0]) < 0
        || (stop != NULL && number_of(stop, INT64_MAX, &numbers[1]) < 0)
        || number_of(salt, UINT32_MAX, &numbers[2]) < 0)
        return -1;
    scan->at = (int64_t)numbers[0];
    scan->stop = numbers[1] < (uint64_t)size ? (int64_t)numbers[1] : (int64_t)size;
    scan->salt = (uint32_t)numbers[2];
    return 0;
}

static int append_number(PyObject *list, uint64_t number)
{
    PyObject *object = PyLong_FromUnsignedLongLong(number);
    int status = object == NULL ? -1 : PyList_Append(list, object);
    return Py_XDECREF(object), status;
}

/* Whether the frame at `at` is one to take: good, and of the index if it is a message, which goes up to it if there are
   `gaps`; these get both then. A frame that is cut off is not bad. With an error set it is none to take. */
static int takes(const Scan *scan, Frame *frame, uint64_t *index, uint64_t end, PyObject *gaps, int *is_good)
{
    enum Found found = frame_at(scan, frame);
    int is_message = found == GOOD && frame->kind == KIND_MESSAGE;
    if (found == GOOD && gaps != Py_None && frame->index > *index) {
        if (append_number(gaps, *index) < 0 || append_number(gaps, frame->index) < 0)
            return 0;
        *index = frame->index;
        if (is_message && *index >= end)
            return 0;
    }
    *is_good = found != BAD && (!is_message || frame->index == *index);
    return *is_good && found == GOOD;
}

/* What a scan returns, which has ended without an error if none is set. */
static PyObject *scanned(const Scan *scan, uint64_t index, int is_good, int has)
{
    if (PyErr_Occurred())
        return NULL;
    return Py_BuildValue("LKNN", (long long)scan->at, (unsigned long long)index, PyBool_FromLong(is_good),
                         PyBool_FromLong(has));
}

static PyObject *stored_headers(const Frame *frame)
{
    return PyBytes_FromStringAndSize((const char *)frame->start + HEADER_BYTES, (Py_ssize_t)frame->headers_size);
}

/* base timestamp, first offset, index, index behind the last, shift, sequence */
static const uint64_t read_largest[] = {INT64_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX, INT64_MAX, INT64_MAX};

static int append_record(PyObject *records, const Frame *frame, const uint64_t *numbers, uint64_t index,
                         PyObject *sequence)
{
    uint64_t timestamp = frame->timestamp < numbers[0] ? numbers[0] : frame->timestamp;
    const char *payload = (const char *)frame->start + HEADER_BYTES + frame->headers_size;
    PyObject *fields[6] = {
        PyLong_FromUnsignedLongLong(numbers[1] + index),
        PyLong_FromUnsignedLongLong(timestamp),
        stored_headers(frame),
        PyBytes_FromStringAndSize(payload, (Py_ssize_t)frame->payload_size),
        PyLong_FromUnsignedLongLong(numbers[4] + (uint64_t)frame->end),
        Py_NewRef(sequence),
    };
    PyObject *record = PyTuple_New(6);
    int status = record == NULL ? -1 : 0;
    for (int i = 0; i < 6; i++) {
        if (fields[i] == NULL)
            status = -1;
        else if (status == 0)
            PyTuple_SetItem(record, i, fields[i]); /* steals it */
        else
            Py_DECREF(fields[i]);
    }
    if (status == 0)
        status = PyList_Append(records, record);
    return Py_XDECREF(record), status;
}

static PyObject *read_messages(ARGUMENTS)
{
    Scan scan;
    uint64_t numbers[6];
    if (begin("read_messages", given, 12) < 0
        || begin_scan(&scan, arguments[0], arguments[1], arguments[2], arguments[3]) < 0
        || numbers_of(arguments + 4, read_largest, 6, numbers) < 0)
        return NULL;
    uint64_t index = numbers[2];
    int is_good = 1, has_headers = 0;
    Frame frame;
    while (index < numbers[3] && takes(&scan, &frame, &index, numbers[3], arguments[11], &is_good)) {
        if (frame.kind == KIND_MESSAGE) {
            has_headers |= frame.headers_size > 0;
            if (append_record(arguments[10], &frame, numbers, index, arguments[9]) < 0)
                return NULL;
            index++;
        }
        scan.at = frame.end;
    }
    return scanned(&scan, index, is_good, has_headers);
}

static PyObject *pass_messages(ARGUMENTS)
{
    Scan scan;
    uint64_t numbers[3]; /* position, index, flags */
    unsigned long long mark = 0, earliest = UINT64_MAX, latest = 0;
    if (begin("pass_messages", given, 7) < 0 || begin_scan(&scan, arguments[0], arguments[1], NULL, arguments[2]) < 0
        || numbers_of(arguments + 3, read_largest, 3, numbers) < 0)
        return NULL;
    uint64_t shift = numbers[0] - (uint64_t)scan.at; /* modulo 2**64, as what it is added to */
    Frame frame;
    while (frame_at(&scan, &frame) == GOOD && frame.kind == KIND_MESSAGE && frame.index == numbers[1]
           && frame.count == 1 && (frame.flags & (FIRST | LAST)) == numbers[2]
           && frame.mark <= shift + (uint64_t)scan.at) {
        scan.at = frame.end;
        numbers[1]++;
        if (arguments[6] == Py_None)
            continue;
        if (append_number(arguments[6], shift + (uint64_t)frame.end) < 0)
            return NULL;
        mark = frame.mark > mark ? frame.mark : mark;
        earliest = frame.timestamp < earliest ? frame.timestamp : earliest;
        latest = frame.timestamp > latest ? frame.timestamp : latest;
    }
    return Py_BuildValue("LKKKK", (long long)scan.at, (unsigned long long)numbers[1], mark, earliest, latest);
}

static PyObject *find_messages(ARGUMENTS)
{
    Scan scan;
    uint64_t numbers[3]; /* base timestamp, index, index behind the last */
    if (begin("find_messages", given, 10) < 0 || begin_scan(&scan, arguments[0], arguments[1], NULL, arguments[2]) < 0
        || numbers_of(arguments + 3, read_largest, 3, numbers) < 0)
        return NULL;
    PyObject *bounds = arguments[6], *timestamps = arguments[7], *headers = arguments[8];
    uint64_t index = numbers[1];
    int is_good = 1, has_others = 0;
    Frame frame;
    while (index < numbers[2] && takes(&scan, &frame, &index, numbers[2], arguments[9], &is_good)) {
        if (frame.kind == KIND_MESSAGE) {
            uint64_t timestamp = frame.timestamp > numbers[0] ? frame.timestamp : numbers[0];
            if (frame.headers_size) {
                PyObject *place = PyLong_FromSsize_t(PyList_Size(timestamps)), *stored = stored_headers(&frame);
                int status = place == NULL || stored == NULL ? -1 : PyDict_SetItem(headers, place, stored);
                Py_XDECREF(place), Py_XDECREF(stored);
                if (status < 0)
                    return NULL;
            }
            if (append_number(timestamps, timestamp) < 0
                || append_number(bounds, (uint64_t)scan.at + HEADER_BYTES + frame.headers_size) < 0
                || append_number(bounds, (uint64_t)frame.end) < 0)
                return NULL;
            index++;
        }
        has_others |= frame.kind != KIND_MESSAGE;
        scan.at = frame.end;
    }
    return scanned(&scan, index, is_good, has_others);
}

/* -- Entries of position files ------------------------------------------------------------------------------------ */

enum { ENTRY_BYTES = 64, ENTRY_BODY_AT = 4, ENTRY_FIELDS = 12 };

/* kind, flags, delivery count, number, synced mark, sequence, first, count, timestamp, delivery, end, generation */
static const int entry_places[] = {4, 5, 6, 8, 12, 16, 24, 32, 40, 48, 56, 60};
static const int entry_widths[] = {1, 1, 2, 4, 4, 8, 8, 8, 8, 8, 4, 4};

static PyObject *pack_entry(ARGUMENTS)
{
    uint8_t entry[ENTRY_BYTES];
    uint64_t salt;
    if (begin("pack_entry", given, 1 + ENTRY_FIELDS) < 0 || number_of(arguments[0], UINT32_MAX, &salt) < 0)
        return NULL;
    for (int i = 0; i < ENTRY_FIELDS; i++) {
        uint64_t value;
        int width = entry_widths[i];
        if (number_of(arguments[1 + i], UINT64_MAX >> (64 - 8 * width), &value) < 0)
            return NULL;
        put(entry + entry_places[i], value, width);
    }
    put(entry, crc_from((uint32_t)salt, entry + ENTRY_BODY_AT, ENTRY_BYTES - ENTRY_BODY_AT), 4);
    return PyBytes_FromStringAndSize((const char *)entry, ENTRY_BYTES);
}

static PyObject *unpack_entry(ARGUMENTS)
{
    Scan scan;
    uint64_t number;
    if (begin("unpack_entry", given, 4) < 0 || begin_scan(&scan, arguments[0], arguments[1], NULL, arguments[2]) < 0
        || number_of(arguments[3], INT64_MAX, &number) < 0)
        return NULL;
    const uint8_t *at = scan.start + scan.at;
    if (scan.stop - scan.at < ENTRY_BYTES || get32(at + 8) != number
        || crc_from(scan.salt, at + ENTRY_BODY_AT, ENTRY_BYTES - ENTRY_BODY_AT) != get32(at))
        Py_RETURN_NONE;
    return Py_BuildValue("IIIIKKKKI", (unsigned)at[4], (unsigned)at[5], get16(at + 6), get32(at + 12),
                         (unsigned long long)get64(at + 16), (unsigned long long)get64(at + 24),
                         (unsigned long long)get64(at + 32), (unsigned long long)get64(at + 48), get32(at + 56));
}

/* -- Writing ------------------------------------------------------------------------------------------------------ */

/* Fill in `vectors` and, for what is no bytes object, `views`; return the bytes in all, or -1 with an error set. */
static int64_t collect(PyObject *buffers, Py_ssize_t count, struct iovec *vectors, Py_buffer *views)
{
    int64_t total = 0; /* a Py_ssize_t of 32 bits would overflow */
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *buffer = PyTuple_GetItem(buffers, i);
        if (PyBytes_Check(buffer)) {
            vectors[i].iov_base = PyBytes_AsString(buffer);
            vectors[i].iov_len = (size_t)PyBytes_Size(buffer);
        } else {
            if (PyObject_GetBuffer(buffer, &views[i], PyBUF_SIMPLE) < 0)
                return -1;
            vectors[i].iov_base = views[i].buf;
            vectors[i].iov_len = (size_t)views[i].len;
        }
        total += (int64_t)vectors[i].iov_len;
    }
    return total;
}

/* Whether a small write drops the GIL, too. A thread that waits for it needs several chances: a single one wakes it too
   late, and its wait of 5 ms for a switch begins anew. With none, it waits that long for each switch between others. */
static int is_shared_time(void)
{
    struct timespec now;
    return clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_nsec % ROUND_NS < SHARED_NS;
}

static ssize_t write_vectors(int fd, const struct iovec *vectors, Py_ssize_t count, off_t position, int is_small)
{
    ssize_t done;
    do {
        PyThreadState *state = is_small && !is_shared_time() ? NULL : PyEval_SaveThread();
        done = pwritev(fd, vectors, (int)count, position);
        if (state != NULL)
            PyEval_RestoreThread(state); /* it leaves errno as it is */
    } while (done < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    if (done < 0 && !PyErr_Occurred())
        PyErr_SetFromErrno(PyExc_OSError);
    return done;
}

/* write(descriptor, buffers, position) -> bytes written: os.pwritev, but most small writes keep the GIL. */
static PyObject *write_buffers(ARGUMENTS)
{
    if (begin("write", given, 3) < 0)
        return NULL;
    long fd = PyLong_AsLong(arguments[0]);
    long long position = PyErr_Occurred() ? -1 : PyLong_AsLongLong(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *buffers = PySequence_Tuple(arguments[1]), *result = NULL;
    if (buffers == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_Size(buffers);
    struct iovec few_vectors[ON_STACK], *vectors = few_vectors;
    Py_buffer few_views[ON_STACK], *views = few_views, *many = NULL;
    if (count > ON_STACK) {
        views = many = PyMem_Malloc((size_t)count * (sizeof *views + sizeof *vectors));
        if (many == NULL)
            return Py_DECREF(buffers), PyErr_NoMemory();
        vectors = (struct iovec *)(many + count);
    }
    for (Py_ssize_t i = 0; i < count; i++)
        views[i].obj = NULL;
    int64_t total = collect(buffers, count, vectors, views);
    if (total >= 0) {
        ssize_t written = write_vectors((int)fd, vectors, count, (off_t)position, total <= KEEP_BYTES);
        if (written >= 0)
            result = PyLong_FromSsize_t(written);
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (views[i].obj != NULL)
            PyBuffer_Release(&views[i]);
    PyMem_Free(many);
    return Py_DECREF(buffers), result;
}

/* -- The module --------------------------------------------------------------------------------------------------- */

/* calls() -> how many calls were made of the other functions. */
static PyObject *calls(PyObject *module, PyObject *nothing) { return PyLong_FromUnsignedLongLong(calls_count); }
#define FUNCTION(NAME, FORM) {NAME, (PyCFunction)(void (*)(void))FORM, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION("crc32c", crc32c), FUNCTION("crc32c_by_table", crc32c_by_table), FUNCTION("write", write_buffers),
    FUNCTION("encode_message", encode_message), FUNCTION("encode_messages", encode_messages),
    FUNCTION("find_messages", find_messages), FUNCTION("pass_messages", pass_messages),
    FUNCTION("read_messages", read_messages), FUNCTION("pack_entry", pack_entry),
    FUNCTION("unpack_entry", unpack_entry), {"calls", calls, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) { return choose_crc(), PyModule_AddIntConstant(module, "INTERFACE", INTERFACE); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "holdfast._core",
    .m_doc = "Compiled forms of functions of holdfast; holdfast.compiled chooses.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
