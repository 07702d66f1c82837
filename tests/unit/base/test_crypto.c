#include "base/crypto.h"

#include <criterion/criterion.h>
#include <string.h>

Test(crypto, sha256_known_answer)
{
    uint8_t digest[32];
    char hex[65];

    crypto_sha256("abc", 3, digest);
    crypto_hex(digest, sizeof digest, hex);
    cr_expect_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

Test(crypto, the_same_bytes_cut_elsewhere_give_another_mac)
{
    static const uint8_t key[CRYPTO_KEY_BYTES] = { 1, 2, 3 };
    const struct crypto_part one[] = { { "ab", 2 }, { "c", 1 } }, other[] = { { "a", 1 }, { "bc", 2 } };
    uint8_t m1[32], m2[32], m3[32];

    crypto_hmac(key, one, 2, m1);
    crypto_hmac(key, other, 2, m2);
    crypto_hmac(key, one, 2, m3);
    cr_expect_not(crypto_equal(m1, m2, 32));
    cr_expect(crypto_equal(m1, m3, 32));
}

Test(crypto, hex_is_read_only_when_it_is_exactly_that_long)
{
    uint8_t bytes[2] = { 9, 9 };

    cr_expect(crypto_unhex("0aFf", bytes, 2));
    cr_expect_eq(bytes[0], 0x0a);
    cr_expect_eq(bytes[1], 0xff);
    cr_expect_not(crypto_unhex("0aF", bytes, 2));
    cr_expect_not(crypto_unhex("0aFff", bytes, 2));
    cr_expect_not(crypto_unhex("0aFg", bytes, 2));
}

Test(crypto, two_random_keys_differ)
{
    uint8_t a[32], b[32];
    struct error e = ERROR_INIT;

    cr_assert_eq(crypto_random(a, sizeof a, &e), 0);
    cr_assert_eq(crypto_random(b, sizeof b, &e), 0);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
}
