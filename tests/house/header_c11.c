/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine written in C11 sees: baton.h first and alone, every options struct initialised
 * by its macro, struct_size first in each so that the library can tell its age. */
#include "baton.h"

#define STARTS_WITH_SIZE(type) \
    _Static_assert(offsetof(type, struct_size) == 0, #type " must start with struct_size")

STARTS_WITH_SIZE(baton_layout);
STARTS_WITH_SIZE(baton_region);
STARTS_WITH_SIZE(baton_aux);
STARTS_WITH_SIZE(baton_manager_options);
STARTS_WITH_SIZE(baton_counters);
STARTS_WITH_SIZE(baton_timeline);
STARTS_WITH_SIZE(baton_sender_options);
STARTS_WITH_SIZE(baton_sender_init_options);
STARTS_WITH_SIZE(baton_receiver_options);
STARTS_WITH_SIZE(baton_receiver_init_options);
STARTS_WITH_SIZE(baton_backend_info);

/* The numbers are on the wire and in Python: they never change. */
_Static_assert(BATON_FAILED == 0 && BATON_BOOTSTRAPPING == 1 && BATON_WAITING_FOR_INPUT == 2 &&
                   BATON_TRANSFERRING == 3 && BATON_SUCCESS == 4,
               "the states' numbers are fixed");
_Static_assert(BATON_OK == 0 && BATON_AGAIN == 1 && BATON_EINVAL == -1 &&
                   BATON_EUNSUPPORTED == -18,
               "the errors' numbers are fixed");

int header_compiles(void);

int header_compiles(void)
{
    baton_layout layout = BATON_LAYOUT_INIT;
    baton_manager_options manager = BATON_MANAGER_OPTIONS_INIT;
    baton_sender_options sender = BATON_SENDER_OPTIONS_INIT;
    baton_sender_init_options sender_init = BATON_SENDER_INIT_OPTIONS_INIT;
    baton_receiver_options receiver = BATON_RECEIVER_OPTIONS_INIT;
    baton_receiver_init_options receiver_init = BATON_RECEIVER_INIT_OPTIONS_INIT;
    return layout.kv == 1 && manager.struct_size == sizeof(manager) &&
           sender.struct_size == sizeof(sender) && sender_init.aux_slot == -1 &&
           receiver.prefill_dp_rank == -1 && receiver_init.aux_slot == -1;
}
