#include "job/control.h"

#include <string.h>

void control_token(const uint8_t key[CRYPTO_KEY_BYTES], const char *job_uid, char ret_token[CONTROL_TOKEN_MAX])
{
    static const char PURPOSE[] = "ringmaster control channel";
    const struct crypto_part parts[] = { { PURPOSE, sizeof PURPOSE - 1 }, { job_uid, strlen(job_uid) } };
    uint8_t mac[CRYPTO_MAC_BYTES];

    crypto_hmac(key, parts, 2, mac);
    crypto_hex(mac, sizeof mac, ret_token);
}
