/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices a rank uses: every form of ib_device, and every mistake in it with a sentence that names
 * what was wrong. And the list that baton_device_list shows, as far as it can be seen without a
 * device; with one, tests/rdma does. */
#include "transfer/device_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX 4

static char sentence[512];
static struct device_choice choices[MAX];
static uint32_t count;

static int parse(const char *text, uint32_t rank)
{
    sentence[0] = '\0';
    count = 77;
    memset(choices, 0x55, sizeof(choices));
    return device_list_parse(text, rank, choices, MAX, &count, ERROR_BUFFER(sentence));
}

static void assert_device(uint32_t index, const char *name, int port, int gid_index)
{
    assert_true(index < count);
    assert_string_equal(choices[index].name, name);
    assert_int_equal(choices[index].port, port);
    assert_int_equal(choices[index].gid_index, gid_index);
}

static void assert_refused(const char *text, uint32_t rank, const char *words)
{
    assert_int_equal(parse(text, rank), BATON_EINVAL);
    assert_int_equal(count, 0);
    if (!strstr(sentence, words))
        fail_msg("'%s' is refused with \"%s\", which does not say \"%s\"", text, sentence,
                 words);
}

static void test_nothing_named_is_an_empty_list(void **state)
{
    (void)state;
    assert_int_equal(parse(NULL, 0), 0);
    assert_int_equal(count, 0);
    assert_int_equal(parse("", 3), 0);
    assert_int_equal(count, 0);
}

static void test_one_device(void **state)
{
    (void)state;
    assert_int_equal(parse("mlx5_0", 0), 0);
    assert_int_equal(count, 1);
    assert_device(0, "mlx5_0", 0, -1);
    assert_int_equal(parse("mlx5_0:2", 9), 0); /* every rank's */
    assert_device(0, "mlx5_0", 2, -1);
    assert_int_equal(parse("mlx5_0:1:0", 0), 0);
    assert_device(0, "mlx5_0", 1, 0);
    assert_int_equal(parse(" rxe0:255:65535 ", 0), 0);
    assert_device(0, "rxe0", 255, 65535);
}

static void test_several_are_rails_in_their_order(void **state)
{
    (void)state;
    assert_int_equal(parse("mlx5_3,mlx5_1:2,mlx5_3:1:5", 0), 0);
    assert_int_equal(count, 3);
    assert_device(0, "mlx5_3", 0, -1);
    assert_device(1, "mlx5_1", 2, -1);
    assert_device(2, "mlx5_3", 1, 5);
    assert_int_equal(parse("a, b ,c,,d", 0), 0); /* blanks and a comma too many do no harm */
    assert_int_equal(count, MAX);
    assert_device(3, "d", 0, -1);
}

static void test_parts_are_the_ranks(void **state)
{
    (void)state;
    const char *text = "mlx5_0;mlx5_1,mlx5_2:1;mlx5_3:2:4";
    assert_int_equal(parse(text, 0), 0);
    assert_int_equal(count, 1);
    assert_device(0, "mlx5_0", 0, -1);
    assert_int_equal(parse(text, 1), 0);
    assert_int_equal(count, 2);
    assert_device(1, "mlx5_2", 1, -1);
    assert_int_equal(parse(text, 2), 0);
    assert_device(0, "mlx5_3", 2, 4);
    assert_refused(text, 3, "no part for rank 3");
    assert_refused("mlx5_0;;mlx5_2", 1, "names no device for this rank");
}

static void test_an_object_names_the_ranks(void **state)
{
    (void)state;
    const char *text = " {\"0\": \"mlx5_0\", \"3\": \"mlx5_1:2,mlx5_2\"}";
    assert_int_equal(parse(text, 0), 0);
    assert_device(0, "mlx5_0", 0, -1);
    assert_int_equal(parse(text, 3), 0);
    assert_int_equal(count, 2);
    assert_device(0, "mlx5_1", 2, -1);
    assert_refused(text, 1, "no string for rank 1");
    assert_refused("{\"0\": 7}", 0, "no string for rank 0");
    assert_refused("{\"0\": \"a\", \"0\": \"b\"}", 0, "no JSON object");
    assert_refused("{\"0\": \"mlx5_0\"", 0, "no JSON object");
    assert_refused("{\"0\": \"\"}", 0, "names no device for this rank");
}

static void test_mistakes_are_named(void **state)
{
    (void)state;
    char text[1100];
    assert_refused("mlx5_0:0", 0, "'0' of mlx5_0 is no port (1 to 255)");
    assert_refused("mlx5_0:256", 0, "'256' of mlx5_0 is no port");
    assert_refused("mlx5_0:one", 0, "'one' of mlx5_0 is no port");
    assert_refused("mlx5_0:-1", 0, "'-1' of mlx5_0 is no port");
    assert_refused("mlx5_0:1:65536", 0, "'65536' of mlx5_0 is no GID index");
    assert_refused("mlx5_0:1:3x", 0, "'3x' of mlx5_0 is no GID index");
    assert_refused("mlx5_0:1:2:3", 0, "more than a port and a GID index");
    assert_refused("../uverbs0", 0, "is no device name");
    assert_refused(" , ", 0, "names no device");
    assert_refused("a,b,c,d,e", 0, "more than 4 devices for one rank");
    memset(text, 'm', 64);
    text[64] = '\0';
    assert_refused(text, 0, "is no device name");
    memset(text, 'm', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_refused(text, 0, "longer than 1023 characters");
}

/* Two ports with two GIDs and one, as a backend would fill it. */
static baton_device_list *list_make(void)
{
    baton_device_list *list = calloc(1, sizeof(*list));
    assert_non_null(list);
    list->ports = calloc(2, sizeof(*list->ports));
    list->gids = calloc(3, sizeof(*list->gids));
    assert_non_null(list->ports);
    assert_non_null(list->gids);
    list->port_count = 2;
    list->gid_count = 3;
    list->ports[0].gid_count = 2;
    list->ports[1].gid_count = 1;
    snprintf(list->ports[1].device, sizeof(list->ports[1].device), "rxe1");
    for (uint32_t i = 0; i < 3; i++)
        list->gids[i].index = 10 + i;
    snprintf(list->problem, sizeof(list->problem), "a problem");
    return list;
}

static void test_a_list_is_read_by_index(void **state)
{
    (void)state;
    baton_device_list *list = list_make();
    baton_port_info port = {.struct_size = sizeof(port)};
    baton_gid_info gid = {.struct_size = sizeof(gid)};
    assert_string_equal(baton_device_list_problem(list), "a problem");
    assert_int_equal(baton_device_list_port(list, 1, &port), 0);
    assert_string_equal(port.device, "rxe1");
    assert_int_equal(port.struct_size, sizeof(port));
    assert_int_equal(baton_device_list_port(list, 2, &port), BATON_ENOTFOUND);
    static const uint32_t index_of[2][2] = {{10, 11}, {12, 0}};
    for (uint32_t p = 0; p < 2; p++)
        for (uint32_t g = 0; g < list->ports[p].gid_count; g++) {
            assert_int_equal(baton_device_list_gid(list, p, g, &gid), 0);
            assert_int_equal(gid.index, index_of[p][g]);
        }
    assert_int_equal(baton_device_list_gid(list, 0, 2, &gid), BATON_ENOTFOUND);
    assert_int_equal(baton_device_list_gid(list, 1, 1, &gid), BATON_ENOTFOUND);
    assert_int_equal(baton_device_list_gid(list, 2, 0, &gid), BATON_ENOTFOUND);
    port.struct_size = gid.struct_size = 8; /* of an older header */
    assert_int_equal(baton_device_list_port(list, 0, &port), BATON_EINVAL);
    assert_int_equal(baton_device_list_gid(list, 0, 0, &gid), BATON_EINVAL);
    baton_device_list_close(list);
    baton_device_list_close(NULL);
}

/* Here, whatever here is: a list whose ports say why, or an error that does. */
static void test_this_machine_is_described_or_says_why_not(void **state)
{
    (void)state;
    baton_device_list *list = NULL;
    baton_port_info port = {.struct_size = sizeof(port)};
    sentence[0] = '\0';
    int code = baton_device_list_open(NULL, 0, &list, sentence, sizeof(sentence));
    if (code) {
        assert_int_equal(code, BATON_EUNSUPPORTED);
        assert_null(list);
        assert_true(strlen(sentence) > 10);
        assert_true(strncmp(sentence, "backend ", 8) != 0);
        return;
    }
    assert_int_equal(baton_device_list_port(list, 0, &port), 0);
    for (uint32_t i = 0; baton_device_list_port(list, i, &port) == 0; i++)
        assert_true(port.device[0] && port.why[0]);
    baton_device_list_close(list);
    assert_int_equal(baton_device_list_open(NULL, 0, NULL, NULL, 0), BATON_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_named_is_an_empty_list),
        cmocka_unit_test(test_one_device),
        cmocka_unit_test(test_several_are_rails_in_their_order),
        cmocka_unit_test(test_parts_are_the_ranks),
        cmocka_unit_test(test_an_object_names_the_ranks),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_a_list_is_read_by_index),
        cmocka_unit_test(test_this_machine_is_described_or_says_why_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
