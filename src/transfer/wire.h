/* SPDX-License-Identifier: Apache-2.0 */
/* Every byte that peers exchange, in one place: a versioned, length-checked header and one struct
 * per frame, with an encoder and a decoder. Decoders trust nothing: every length, count and enum
 * is checked, and what they return points into the caller's buffer or is freed with _free.
 *
 * A frame on a link or stream, little-endian:
 *
 *    0       4       6       8         12        16                24
 *    +-------+-------+-------+---------+---------+-----------------+----------- ...
 *    | magic | vers. | type  | length  | sequence| epoch           | payload (length bytes)
 *    +-------+-------+-------+---------+---------+-----------------+----------- ...
 *     "BATN"   u16     u16     u32       u32       u64
 *
 * sequence counts the frames of one direction of one connection from 0: a replayed, lost or
 * reordered frame costs the connection. epoch is the sender's: drawn at random when a manager
 * opens, so that a restarted peer is a new peer.
 *
 * In payloads: u8/u16/u32/u64 little-endian without padding, strings and blobs as u32 length and
 * bytes, lists as u32 count and elements. Bytes after the known fields are an error. */
#ifndef BATON_TRANSFER_WIRE_H
#define BATON_TRANSFER_WIRE_H

#include "layout.h"

#define WIRE_MAGIC 0x4e544142u /* "BATN" */
#define WIRE_VERSION 1
#define WIRE_HEADER_BYTES 24
#define WIRE_PAYLOAD_MAX (16u << 20)
#define WIRE_HELLO_MAX 4096u /* nothing larger before the peer has said who it is */
#define WIRE_TEXT_MAX 512
#define WIRE_NAME_MAX 64
#define WIRE_REGIONS_MAX 16
#define WIRE_AUX_FIELDS_MAX 64
#define WIRE_BACKENDS_MAX 8
#define WIRE_KEY_MAX 65536
#define WIRE_STREAMS_MAX 16
#define WIRE_FDS_MAX 253 /* what one SCM_RIGHTS message can carry */
#define WIRE_ROOM_MAX INT64_MAX
#define WIRE_NONCE_BYTES 16
#define WIRE_PROOF_BYTES 32

enum wire_type {
    WIRE_HELLO = 1,    /* both ways, first on every connection */
    WIRE_PROOF = 2,    /* both ways, after HELLO where a key is set */
    WIRE_REGISTER = 3, /* both ways, once per link: regions, aux schema, keys per backend */
    WIRE_CHOICE = 4,   /* acceptor -> initiator: the backend that will carry the bytes */
    WIRE_OPEN = 5,     /* receiver -> sender: I have this room */
    WIRE_GRANT = 6,    /* receiver -> sender: write here */
    WIRE_COMMIT = 7,   /* sender -> receiver: this much has been written / can be read */
    WIRE_AUX = 8,      /* sender -> receiver: bytes of the aux slot */
    WIRE_LANDED = 9,   /* receiver -> sender: all of it is here */
    WIRE_ABORT = 10,   /* both ways: the room has failed; answered by FENCED */
    WIRE_FENCED = 11,  /* both ways: I will not touch the room's pages any more */
    WIRE_QUERY = 12,   /* sender -> receiver after a lost link: did it land? */
    WIRE_HEARTBEAT = 13,
    WIRE_BYE = 14,    /* the link ends, with a reason */
    WIRE_DATA = 15,   /* on tcp streams: a table of runs, then their bytes (not in length) */
    WIRE_ATTACH = 16, /* on the AF_UNIX side connection: its link, and the memfds */
    WIRE_SIGNAL = 17, /* both ways: from one half of the link's backend to the other */
};

struct wire_header {
    uint16_t version;
    uint16_t type;
    uint32_t length;
    uint32_t sequence;
    uint64_t epoch;
};

/* A growing buffer for encoding; `failed` is set when memory ran out or a limit was exceeded. */
struct wire_buffer {
    uint8_t *bytes;
    size_t size;
    size_t capacity;
    int failed;
};
void wire_buffer_free(struct wire_buffer *buffer);

/* Appends the header as it is given. Frame encoders call it: from the header that they are handed
 * they take sequence and epoch (wire_room_put also type); version, type and length they fill in. */
void wire_header_put(struct wire_buffer *out, const struct wire_header *header);
/* Checks magic, version, type and the type's length limit. bytes holds WIRE_HEADER_BYTES. */
int wire_header_get(const uint8_t *bytes, struct wire_header *out, struct error err);

const char *wire_type_name(uint16_t type); /* "GRANT"; "?" for what is no type */

/* The rule for names and texts on the wire: UTF-8 without control characters. Returns 1 or 0. */
int wire_text_valid(const char *bytes, size_t length);

/* Pieces of a received payload. */
struct wire_string { /* not NUL-terminated, inside the payload */
    const char *bytes;
    uint32_t length;
};
struct wire_pages { /* i32 little-endian, inside the payload, possibly unaligned */
    const uint8_t *bytes;
    uint32_t count;
};
void wire_pages_copy(struct wire_pages pages, int32_t *out);
void wire_string_copy(struct wire_string string, char *out, size_t size); /* cuts, terminates */
struct wire_string wire_string_of(const char *text); /* for encoding; NULL is "" */

enum wire_kind { WIRE_KIND_LINK = 1, WIRE_KIND_STREAM = 2 };

struct wire_hello {
    uint16_t kind;   /* enum wire_kind */
    uint16_t stream; /* index, for streams */
    uint32_t rank, tp_size, pp_rank, pp_size, dp_rank;
    uint32_t pid;
    uint32_t authenticate;   /* 1: I have a key, a PROOF follows and I want one */
    uint64_t process;        /* random, one per process: is it me? */
    uint64_t session;        /* of the link (chosen by the initiator); streams repeat it */
    uint64_t expected_epoch; /* initiator: whom it means to call, 0 if it does not know */
    uint8_t nonce[WIRE_NONCE_BYTES];
    struct wire_string host_id;   /* boot id + network namespace: same string, same host */
    struct wire_string unix_name; /* abstract AF_UNIX name (without the leading NUL) */
};

struct wire_proof {
    uint8_t proof[WIRE_PROOF_BYTES];
};

struct wire_aux_field {
    char name[WIRE_NAME_MAX];
    uint32_t dtype, count;
    uint64_t offset;
};
struct wire_region {
    char name[WIRE_NAME_MAX];
    uint32_t kind;
    struct layout layout;
};
struct wire_backend_key {
    char name[16];
    uint8_t *key; /* owned after decoding; borrowed when encoding */
    uint32_t key_bytes;
};
struct wire_register {
    char fingerprint[WIRE_NAME_MAX]; /* "": unchecked */
    struct wire_region regions[WIRE_REGIONS_MAX];
    uint32_t region_count;
    uint32_t aux_slots; /* 0: none */
    uint64_t aux_slot_bytes;
    struct wire_aux_field aux_fields[WIRE_AUX_FIELDS_MAX];
    uint32_t aux_field_count;
    struct wire_backend_key backends[WIRE_BACKENDS_MAX]; /* in order of preference */
    uint32_t backend_count;
    uint32_t attach; /* 1: an AF_UNIX side connection with memfds was opened for it */
    uint32_t verify; /* 1: wants sums in COMMIT */
};
void wire_register_free(struct wire_register *frame);

struct wire_choice {
    int32_t code; /* 0, or why the link is refused */
    struct wire_string backend;
    struct wire_string text; /* why this one and not those before it; or the refusal */
};

struct wire_open {
    uint64_t room;
    uint32_t ticket;
    uint32_t time_left_ms;
    uint32_t queue_position;
    uint32_t rank; /* decode's tp rank, for dest_ranks */
    uint32_t required_dst;
};

struct wire_state_pages {
    uint32_t region;
    uint32_t first_token;
    struct wire_pages pages;
};
#define WIRE_GRANT_DUMMY 1u /* nothing to send to this rank; only wait for LANDED */
struct wire_grant {
    uint64_t room;
    uint32_t ticket;
    uint32_t flags;
    uint32_t time_left_ms;
    uint32_t rank;
    uint32_t required_dst;
    uint32_t prefix;
    int32_t aux_slot;
    struct wire_pages pages;
    struct wire_state_pages states[WIRE_REGIONS_MAX];
    uint32_t state_count;
};

#define WIRE_COMMIT_LAST 1u
#define WIRE_COMMIT_SOURCE 2u /* carries source pages: the receiver reads them itself */
struct wire_lane {
    uint64_t bytes;
    uint64_t operations;
    uint64_t landings; /* verbs: immediates that prove that the bytes are there */
};
struct wire_commit {
    uint64_t room;
    uint32_t ticket;
    uint32_t flags;
    uint64_t watermark; /* what is ready, see room.h */
    uint32_t aux_bytes; /* sent in AUX frames, counted */
    uint64_t sum;       /* verify: order-free sum over all bytes sent on this leg so far */
    struct wire_lane lanes[WIRE_STREAMS_MAX]; /* by rail */
    uint32_t lane_count;
    /* WIRE_COMMIT_SOURCE */
    uint32_t total_pages, first_token, tokens; /* as in baton_sender_init */
    uint32_t page_offset;                      /* position of the first page below */
    struct wire_pages pages;
    struct wire_state_pages states[WIRE_REGIONS_MAX]; /* with WIRE_COMMIT_LAST */
    uint32_t state_count;
};

struct wire_aux {
    uint64_t room;
    uint32_t ticket;
    uint32_t offset; /* in the receiver's slot */
    const uint8_t *bytes;
    uint32_t length;
};

struct wire_room { /* LANDED, FENCED, QUERY */
    uint64_t room;
    uint32_t ticket;
};

struct wire_abort {
    uint64_t room;
    uint32_t ticket; /* 0: not granted yet */
    int32_t code;    /* a baton_error other than 0 */
    struct wire_string text;
};

struct wire_heartbeat {
    uint64_t tick;  /* the owner's */
    uint32_t rooms; /* open at the sender of the frame */
};

struct wire_signal { /* what the bytes mean is the backend's affair */
    const uint8_t *bytes;
    uint32_t length;
};

struct wire_bye {
    int32_t code;
    struct wire_string text;
};

#define WIRE_DATA_RUNS_MAX 1024
struct wire_data { /* followed on the stream by `bytes` bytes: the runs' contents, in order */
    uint32_t ticket;
    uint32_t run_count;
    uint64_t bytes;
    const uint8_t *runs; /* run_count entries of WIRE_DATA_RUN_BYTES, see wire_data_run_get */
};
#define WIRE_DATA_RUN_BYTES 16 /* u16 region, u16 base, u32 length, u64 offset */
struct wire_data_run {
    uint16_t region;
    uint16_t base;
    uint32_t length;
    uint64_t offset;
};

struct wire_attach {
    uint64_t session;
    uint32_t fd_count;
};

/* encode: appends one whole frame, or nothing and sets buffer->failed. Texts (of CHOICE, ABORT,
 * BYE) are cut to WIRE_TEXT_MAX between two characters, and what is no text in them is replaced;
 * names must be valid.
 * decode: payload of one frame of that type. 0, or BATON_EPROTOCOL (ENOMEM: only REGISTER
 * allocates) with a sentence, and then the output is untouched. */
void wire_hello_put(struct wire_buffer *, struct wire_header, const struct wire_hello *);
int wire_hello_get(const uint8_t *payload, size_t length, struct wire_hello *, struct error);
void wire_proof_put(struct wire_buffer *, struct wire_header, const struct wire_proof *);
int wire_proof_get(const uint8_t *payload, size_t length, struct wire_proof *, struct error);
void wire_register_put(struct wire_buffer *, struct wire_header, const struct wire_register *);
int wire_register_get(const uint8_t *payload, size_t length, struct wire_register *,
                      struct error);
void wire_choice_put(struct wire_buffer *, struct wire_header, const struct wire_choice *);
int wire_choice_get(const uint8_t *payload, size_t length, struct wire_choice *, struct error);
void wire_open_put(struct wire_buffer *, struct wire_header, const struct wire_open *);
int wire_open_get(const uint8_t *payload, size_t length, struct wire_open *, struct error);
/* When encoding, struct wire_pages points at the caller's int32_t array (native order). */
void wire_grant_put(struct wire_buffer *, struct wire_header, const struct wire_grant *);
int wire_grant_get(const uint8_t *payload, size_t length, struct wire_grant *, struct error);
void wire_commit_put(struct wire_buffer *, struct wire_header, const struct wire_commit *);
int wire_commit_get(const uint8_t *payload, size_t length, struct wire_commit *, struct error);
void wire_aux_put(struct wire_buffer *, struct wire_header, const struct wire_aux *);
int wire_aux_get(const uint8_t *payload, size_t length, struct wire_aux *, struct error);
void wire_room_put(struct wire_buffer *, struct wire_header, const struct wire_room *);
int wire_room_get(const uint8_t *payload, size_t length, struct wire_room *, struct error);
void wire_abort_put(struct wire_buffer *, struct wire_header, const struct wire_abort *);
int wire_abort_get(const uint8_t *payload, size_t length, struct wire_abort *, struct error);
void wire_heartbeat_put(struct wire_buffer *, struct wire_header,
                        const struct wire_heartbeat *);
int wire_heartbeat_get(const uint8_t *payload, size_t length, struct wire_heartbeat *,
                       struct error);
void wire_signal_put(struct wire_buffer *, struct wire_header, const struct wire_signal *);
int wire_signal_get(const uint8_t *payload, size_t length, struct wire_signal *, struct error);
void wire_bye_put(struct wire_buffer *, struct wire_header, const struct wire_bye *);
int wire_bye_get(const uint8_t *payload, size_t length, struct wire_bye *, struct error);
void wire_attach_put(struct wire_buffer *, struct wire_header, const struct wire_attach *);
int wire_attach_get(const uint8_t *payload, size_t length, struct wire_attach *, struct error);

/* DATA is on the copy path: it is written into a fixed buffer, never allocated.
 * out must hold WIRE_HEADER_BYTES + 16 + run_count*WIRE_DATA_RUN_BYTES; returns the size.
 * 1 to WIRE_DATA_RUNS_MAX runs, none of them empty, `bytes` is their sum. */
size_t wire_data_put(uint8_t *out, uint64_t epoch, uint32_t sequence, uint32_t ticket,
                     uint64_t bytes, const struct wire_data_run *runs, uint32_t run_count);
int wire_data_get(const uint8_t *payload, size_t length, struct wire_data *, struct error);
void wire_data_run_get(const uint8_t *entry, struct wire_data_run *out);

#endif
