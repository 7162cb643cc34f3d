/* SPDX-License-Identifier: Apache-2.0 */
/* How an aux slot of ours becomes one of the peer's: fields of the same name, in the peer's places,
 * neighbours joined. A field that only one side has is left alone, so that the two sides may be of
 * different versions; a field that both have must be of one type and length. */
#include "link.h"
#include "manager.h"

#include <stdlib.h>
#include <string.h>

static uint64_t dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case BATON_DTYPE_F16:
    case BATON_DTYPE_BF16: return 2;
    case BATON_DTYPE_F32:
    case BATON_DTYPE_I32:
    case BATON_DTYPE_U32: return 4;
    case BATON_DTYPE_F64:
    case BATON_DTYPE_I64:
    case BATON_DTYPE_U64: return 8;
    default: return 1;
    }
}

int aux_map_make(const struct manager *manager, const struct wire_register *theirs,
                 struct aux_segment **out, uint32_t *count, struct error err)
{
    struct aux_segment *map = calloc(WIRE_AUX_FIELDS_MAX, sizeof(*map));
    uint32_t used = 0;
    if (!map)
        return error_set(err, BATON_ENOMEM, "out of memory for the aux map");
    for (uint32_t i = 0; i < theirs->aux_field_count; i++) {
        const struct wire_aux_field *dst = &theirs->aux_fields[i];
        for (uint32_t k = 0; k < manager->aux_field_count; k++) {
            const struct wire_aux_field *src = &manager->aux_fields[k];
            if (strcmp(src->name, dst->name) != 0)
                continue;
            if (src->dtype != dst->dtype || src->count != dst->count) {
                free(map);
                return error_set(
                    err, BATON_ELAYOUT,
                    "aux field '%s' is %u of type %u here and %u of type %u at the peer",
                    src->name, src->count, src->dtype, dst->count, dst->dtype);
            }
            struct aux_segment segment = {src->offset, dst->offset,
                                          src->count * dtype_bytes(src->dtype)};
            struct aux_segment *last = used ? &map[used - 1] : NULL;
            if (last && last->src + last->length == segment.src &&
                last->dst + last->length == segment.dst)
                last->length += segment.length;
            else
                map[used++] = segment;
        }
    }
    *out = map;
    *count = used;
    return BATON_OK;
}

uint64_t aux_field_bytes(const struct wire_aux_field *field)
{
    return field->count * dtype_bytes(field->dtype);
}
