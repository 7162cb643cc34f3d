/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine written in C++17 sees: baton.h first and alone. */
#include "baton.h"

static_assert(sizeof(baton_layout::struct_size) == 4, "struct_size is 32 bits");
static_assert(noexcept(BATON_SUCCESS), "the states are constants");

/* The macros name their members, which strict C++17 calls an extension and every compiler
 * takes. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wc++20-designator"
#else
#pragma GCC diagnostic ignored "-Wc++20-extensions"
#endif
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

bool header_compiles()
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
