/* SPDX-License-Identifier: Apache-2.0 */
/* The whole scheduler on a tiny model, one matter at a time. test_traffic.c has everything at once. */
#include "worker_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *golden;

static struct ticket *ticket_random(struct rig *rig, uint64_t seed, uint32_t prompt_count)
{
    struct random_source random = {seed};
    struct ticket *ticket = malloc(sizeof(*ticket));
    assert_non_null(ticket);
    ticket_init(ticket, rig);
    rig_random_tokens(&random, ticket->prompt, prompt_count);
    ticket->generation.prompt_count = prompt_count;
    return ticket;
}

static void ticket_drop(struct ticket *ticket)
{
    ticket_free(ticket);
    free(ticket);
}

static void expect_alone(struct rig *rig, const struct ticket *ticket)
{
    struct answer *expected = malloc(sizeof(*expected));
    assert_non_null(expected);
    rig_alone(rig, ticket, expected);
    answer_expect(ticket, expected);
    free(expected);
}

static void test_answers_are_those_of_the_model_alone(void **state)
{
    (void)state;
    struct rig rig;
    struct ticket *tickets[8];
    rig_open(&rig, golden, &rig_defaults);
    for (uint32_t i = 0; i < 8; i++) {
        tickets[i] = ticket_random(&rig, i, 1 + 37 * i);
        tickets[i]->generation.max_new_tokens = 3 * i;
        tickets[i]->generation.ignore_eos = true;
        if (i % 2)
            tickets[i]->generation.sampling.temperature = 1.2f;
        tickets[i]->generation.sampling.seed = i;
    }
    for (uint32_t i = 0; i < 8; i++)
        ticket_submit(tickets[i]);
    for (uint32_t i = 0; i < 8; i++) {
        ticket_wait(tickets[i]);
        expect_alone(&rig, tickets[i]);
        ticket_drop(tickets[i]);
    }
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_of_the_model_alone),
    };
    if (argc != 2)
        return 2;
    golden = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
