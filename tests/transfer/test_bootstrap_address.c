/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstrap addresses and the list of those that a worker may call: what is taken apart, what
 * is refused, and that nothing slips past the list. */
#include "transfer/bootstrap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static void test_address_parse_takes_apart(void **state)
{
    static const struct {
        const char *addr, *host;
        uint16_t port;
    } cases[] = {
        {"127.0.0.1:8998", "127.0.0.1", 8998},
        {"prefill-0.svc.local:1", "prefill-0.svc.local", 1},
        {"[::1]:65535", "::1", 65535},
        {"[fe80::1%eth0]:8998", "fe80::1%eth0", 8998},
        {"[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80},
        {"host_a:08998", "host_a", 8998},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char host[64], text[256];
        uint16_t port;
        assert_int_equal(bootstrap_address_parse(cases[i].addr, host, sizeof(host), &port,
                                                 ERROR_BUFFER(text)),
                         BATON_OK);
        assert_string_equal(host, cases[i].host);
        assert_int_equal(port, cases[i].port);
    }
}

static void test_address_parse_refuses_with_reason(void **state)
{
    static const struct {
        const char *addr, *reason;
    } cases[] = {
        {NULL, "host:port"},
        {"", "no ':port'"},
        {"host", "no ':port'"},
        {":8998", "no host"},
        {"host:", "1 to 65535"},
        {"host:0", "1 to 65535"},
        {"host:65536", "1 to 65535"},
        {"host:99999999999999999999", "1 to 65535"},
        {"host:80x", "1 to 65535"},
        {"host:-1", "1 to 65535"},
        {"host: 80", "1 to 65535"},
        {"::1:8998", "brackets"},
        {"[::1]", "no ':port'"},
        {"[::1]8998", "no ':port'"},
        {"[::1", "not closed"},
        {"[]:8998", "no host"},
        {"[host]:8998", "no IPv6 address"},
        {"[::1%]:8998", "no IPv6 address"},
        {"[::1%a/b]:8998", "no IPv6 address"},
        {"http://host:8998", "://"},
        {"ho st:8998", "characters"},
        {"user@host:8998", "characters"},
        {"host/path:8998", "characters"},
        {"h\r\nX: y:8998", "more than one ':'"},
        {"0123456789012345678901234567890123456789012345678901234567890123:1", "63 characters"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char host[64] = "untouched", text[256] = "";
        uint16_t port = 7;
        assert_int_equal(bootstrap_address_parse(cases[i].addr, host, sizeof(host), &port,
                                                 ERROR_BUFFER(text)),
                         BATON_EINVAL);
        if (!strstr(text, cases[i].reason))
            fail_msg("'%s': '%s' lacks '%s'", cases[i].addr, text, cases[i].reason);
        assert_string_equal(host, "untouched");
        assert_int_equal(port, 7);
    }
}

static void test_address_allow_list(void **state)
{
    static const struct {
        const char *addr, *allow;
        int expected;
    } cases[] = {
        {"anything:1", NULL, BATON_OK},
        {"anything:1", "", BATON_OK},
        {"anything:1", " , ", BATON_EAUTH},
        /* names */
        {"prefill-0:8998", "prefill-0", BATON_OK},
        {"PREFILL-0:8998", "prefill-0", BATON_OK},
        {"prefill-0:8998", "prefill-0:8998", BATON_OK},
        {"prefill-0:8999", "prefill-0:8998", BATON_EAUTH},
        {"prefill-00:8998", "prefill-0", BATON_EAUTH},
        {"prefill-1:8998", "a, b:1 ,\tprefill-1 , c", BATON_OK},
        {"localhost:8998", "127.0.0.1", BATON_EAUTH},
        /* IPv4 */
        {"10.1.2.3:8998", "10.0.0.0/8", BATON_OK},
        {"11.1.2.3:8998", "10.0.0.0/8", BATON_EAUTH},
        {"10.1.2.3:8998", "10.1.2.3", BATON_OK},
        {"10.1.2.3:8998", "10.1.2.3:8998", BATON_OK},
        {"10.1.2.3:8998", "10.1.2.3:8999", BATON_EAUTH},
        {"10.1.2.127:8998", "10.1.2.0/25", BATON_OK},
        {"10.1.2.128:8998", "10.1.2.0/25", BATON_EAUTH},
        {"10.1.2.3:8998", "10.1.2.3/32", BATON_OK},
        {"10.1.2.2:8998", "10.1.2.3/32", BATON_EAUTH},
        {"10.1.2.2:8998", "10.1.2.3/31", BATON_OK},
        {"10.1.2.2:8998", "0.0.0.0/0", BATON_OK},
        {"[::1]:8998", "0.0.0.0/0", BATON_EAUTH},
        {"name:8998", "0.0.0.0/0,::/0", BATON_EAUTH},
        /* IPv6, and IPv4 dressed up as IPv6 */
        {"[fd00::1]:8998", "fd00::/8", BATON_OK},
        {"[fe00::1]:8998", "fd00::/8", BATON_EAUTH},
        {"[fd00::1]:8998", "fd00::1", BATON_OK},
        {"[fd00::1]:8998", "FD00:0:0::1", BATON_OK},
        {"[fd00::1]:8998", "[fd00::1]", BATON_OK},
        {"[fd00::1]:8998", "[fd00::1]:8998", BATON_OK},
        {"[fd00::1]:8998", "[fd00::1]:8997", BATON_EAUTH},
        {"[fd00::2]:8998", "fd00::1/127", BATON_EAUTH},
        {"[fd00::1]:8998", "fd00::/127", BATON_OK},
        {"[::ffff:10.1.2.3]:8998", "10.0.0.0/8", BATON_OK},
        {"[::ffff:11.1.2.3]:8998", "10.0.0.0/8", BATON_EAUTH},
        {"10.1.2.3:8998", "::/0", BATON_OK},
        /* a malformed entry never opens the list, wherever it stands */
        {"10.1.2.3:8998", "10.1.2.3,10.0.0.0/33", BATON_EINVAL},
        {"10.1.2.3:8998", "10.0.0.0/", BATON_EINVAL},
        {"10.1.2.3:8998", "10.0.0.0/8x", BATON_EINVAL},
        {"10.1.2.3:8998", "10.0.0/8", BATON_EINVAL},
        {"10.1.2.3:8998", "fd00::/129", BATON_EINVAL},
        {"10.1.2.3:8998", "host:99999", BATON_EINVAL},
        {"10.1.2.3:8998", "[", BATON_EINVAL},
        {"10.1.2.3:8998", "[]", BATON_EINVAL},
        {"10.1.2.3:8998", "[host]", BATON_EINVAL},
        {"10.1.2.3:8998", "ho st", BATON_EINVAL},
        {"10.1.2.3:8998", "*", BATON_EINVAL},
        {"not an address", "10.0.0.0/8", BATON_EINVAL},
        {"not an address", NULL, BATON_EINVAL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512] = "";
        int rc = bootstrap_address_allowed(cases[i].addr, cases[i].allow, ERROR_BUFFER(text));
        if (rc != cases[i].expected)
            fail_msg("'%s' in '%s': %d, expected %d (%s)", cases[i].addr,
                     cases[i].allow ? cases[i].allow : "(null)", rc, cases[i].expected, text);
        assert_true((rc == BATON_OK) == (*text == '\0'));
    }
}

static void test_address_refusal_names_what_is_wrong(void **state)
{
    char text[512], long_list[400];
    (void)state;
    assert_int_equal(
        bootstrap_address_allowed("169.254.169.254:80", "10.0.0.0/8", ERROR_BUFFER(text)),
        BATON_EAUTH);
    assert_non_null(strstr(text, "169.254.169.254:80"));
    assert_int_equal(
        bootstrap_address_allowed("10.0.0.1:80", "10.0.0.0/99", ERROR_BUFFER(text)),
        BATON_EINVAL);
    assert_non_null(strstr(text, "10.0.0.0/99"));
    memset(long_list, 'a', sizeof(long_list) - 1);
    long_list[sizeof(long_list) - 1] = '\0';
    assert_int_equal(bootstrap_address_allowed("10.0.0.1:80", long_list, ERROR_BUFFER(text)),
                     BATON_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address_parse_takes_apart),
        cmocka_unit_test(test_address_parse_refuses_with_reason),
        cmocka_unit_test(test_address_allow_list),
        cmocka_unit_test(test_address_refusal_names_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
