/* SPDX-License-Identifier: Apache-2.0 */
/* A certificate for 127.0.0.1 and localhost that signs itself, made when the test starts. */
#ifndef BATON_TESTS_SELF_SIGNED_H
#define BATON_TESTS_SELF_SIGNED_H

struct self_signed {
    char certificate[64], key[64]; /* files */
};

void self_signed_make(struct self_signed *files);
void self_signed_remove(struct self_signed *files);

#endif
