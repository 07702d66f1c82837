/*
 * crypto.h — keys, nonces and message authentication, over OpenSSL's libcrypto.
 */
#ifndef BASE_CRYPTO_H
#define BASE_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define CRYPTO_KEY_BYTES 32
#define CRYPTO_MAC_BYTES 32

MUST_CHECK int crypto_random(void *bytes, size_t len, struct error *e);
/* HMAC-SHA256 over the parts in order, each preceded by its length as 8 bytes, so that no two lists give one MAC. */
struct crypto_part { const void *bytes; size_t len; };
void crypto_hmac(const uint8_t key[CRYPTO_KEY_BYTES], const struct crypto_part *parts, size_t count,
                 uint8_t ret_mac[CRYPTO_MAC_BYTES]);
/* HMAC-SHA256 as RFC 2104 has it, for protocols that ask for it. */
void crypto_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len, uint8_t ret_mac[CRYPTO_MAC_BYTES]);
void crypto_sha256(const void *bytes, size_t len, uint8_t ret_digest[32]);
void crypto_sha1(const void *bytes, size_t len, uint8_t ret_digest[20]); /* for protocols that ask for it; proves nothing */
bool crypto_equal(const void *a, const void *b, size_t len); /* constant time */
void crypto_hex(const void *bytes, size_t len, char *ret_text /* 2*len+1 */);
bool crypto_unhex(const char *text, void *ret_bytes, size_t len); /* false unless exactly 2*len hex digits: then ret_bytes is undefined */
void crypto_wipe(void *bytes, size_t len);

#endif
