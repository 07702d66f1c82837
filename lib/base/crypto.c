#include "base/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

int crypto_random(void *bytes, size_t len, struct error *e)
{
    if (RAND_bytes(bytes, (int)len) != 1)
        return error_set(e, ERROR_IO, "the system's random generator gave nothing");
    return 0;
}

/* None of these calls fails for a key of this size unless memory is out, which is fatal here as in mem.h. */
static void must(int ok)
{
    if (ok != 1)
        abort();
}

void crypto_hmac(const uint8_t key[CRYPTO_KEY_BYTES], const struct crypto_part *parts, size_t count,
                 uint8_t ret_mac[CRYPTO_MAC_BYTES])
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end(),
    };
    EVP_MAC *algorithm = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *mac = algorithm != NULL ? EVP_MAC_CTX_new(algorithm) : NULL;

    must(mac != NULL);
    must(EVP_MAC_init(mac, key, CRYPTO_KEY_BYTES, params));
    for (size_t i = 0; i < count; i++) {
        uint8_t prefix[8];
        for (int b = 0; b < 8; b++)
            prefix[b] = (uint8_t)((uint64_t)parts[i].len >> (8 * b));
        must(EVP_MAC_update(mac, prefix, sizeof prefix));
        must(EVP_MAC_update(mac, parts[i].bytes, parts[i].len));
    }
    size_t len = 0;
    must(EVP_MAC_final(mac, ret_mac, &len, CRYPTO_MAC_BYTES));
    EVP_MAC_CTX_free(mac);
    EVP_MAC_free(algorithm);
}

void crypto_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len, uint8_t ret_mac[CRYPTO_MAC_BYTES])
{
    unsigned mac_len = CRYPTO_MAC_BYTES;

    must(HMAC(EVP_sha256(), key, (int)key_len, bytes, len, ret_mac, &mac_len) != NULL);
}

void crypto_sha256(const void *bytes, size_t len, uint8_t ret_digest[32])
{
    (void)SHA256(bytes, len, ret_digest);
}

void crypto_sha1(const void *bytes, size_t len, uint8_t ret_digest[20])
{
    (void)SHA1(bytes, len, ret_digest);
}

bool crypto_equal(const void *a, const void *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}

void crypto_hex(const void *bytes, size_t len, char *ret_text)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = bytes;

    for (size_t i = 0; i < len; i++) {
        ret_text[2 * i] = digits[p[i] >> 4];
        ret_text[2 * i + 1] = digits[p[i] & 15];
    }
    ret_text[2 * len] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool crypto_unhex(const char *text, void *ret_bytes, size_t len)
{
    uint8_t *out = ret_bytes;

    if (strlen(text) != 2 * len)
        return false;
    for (size_t i = 0; i < len; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

void crypto_wipe(void *bytes, size_t len)
{
    OPENSSL_cleanse(bytes, len);
}
