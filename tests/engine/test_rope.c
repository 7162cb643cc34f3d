/* SPDX-License-Identifier: Apache-2.0 */
/* Our own sine and cosine against the C library's in double precision. */
#include "engine/rope.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>

static void test_angles_are_those_of_the_library(void **state)
{
    (void)state;
    float frequencies[32], cosine[32], sine[32];
    for (int i = 0; i < 32; i++)
        frequencies[i] = (float)pow(100000.0, -i / 32.0);
    for (uint32_t position = 0; position < 1u << 20; position += 1 + position / 50) {
        rope_angles(frequencies, 32, position, cosine, sine);
        for (int i = 0; i < 32; i++) {
            double angle = (float)position * frequencies[i];
            if (!(fabs(cosine[i] - cos(angle)) <= 6e-8) ||
                !(fabs(sine[i] - sin(angle)) <= 6e-8))
                fail_msg("position %u, frequency %d: %.9g %.9g, should be %.9g %.9g", position,
                         i, (double)cosine[i], (double)sine[i], cos(angle), sin(angle));
        }
    }
}

static void test_position_zero_is_no_rotation(void **state)
{
    (void)state;
    const float frequency = 1.0f;
    float cosine, sine;
    rope_angles(&frequency, 1, 0, &cosine, &sine);
    assert_true(cosine == 1.0f && sine == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_angles_are_those_of_the_library),
        cmocka_unit_test(test_position_zero_is_no_rotation),
    };
    return cmocka_run_group_tests_name("engine.rope", tests, NULL, NULL);
}
