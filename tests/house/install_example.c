/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program that uses an installed libbaton; install.sh compiles and runs it. */
#include <baton.h>
#include <stdio.h>

int main(void)
{
    puts(baton_version());
    return 0;
}
