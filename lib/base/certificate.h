/*
 * certificate.h — a certificate authority of one's own: EC P-256 keys and X.509 certificates as PEM texts, over OpenSSL.
 *
 * Times are Unix milliseconds and given by the caller; certificates have whole seconds. A certificate is valid from five minutes
 * before `now_ms`, so that a peer whose clock is behind takes it. Nothing here is kept or logged; keys are wiped when released.
 */
#ifndef BASE_CERTIFICATE_H
#define BASE_CERTIFICATE_H

#include <stdint.h>

#include "base/error.h"

#define CERTIFICATE_PEM_MAX 65536 /* bytes of a text that is read */

struct certificate { char *pem, *key_pem; }; /* owned */
void certificate_release(struct certificate *c); /* NULL fields are fine; they are NULL after it */

/* A self-signed authority. With `key_pem` it is the one of that key anew: what the former one signed is valid under it, too. */
MUST_CHECK int certificate_make_authority(const char *name, const char *key_pem, int64_t now_ms, int64_t lifetime_ms,
                                          struct certificate *ret, struct error *e);
/* A server's, for one host: a DNS name or an IP address. */
MUST_CHECK int certificate_issue(const struct certificate *authority, const char *host, int64_t now_ms, int64_t lifetime_ms,
                                 struct certificate *ret, struct error *e);

/* Whether the two belong together and the certificate is an authority's; *ret_not_after_ms is when it ends, past or not. */
MUST_CHECK int certificate_check_authority(const struct certificate *c, int64_t *ret_not_after_ms, struct error *e);
/* Whether `c` is a server's for this host, its key its own, signed by `authority`; its time may be over. */
MUST_CHECK int certificate_check(const struct certificate *c, const char *authority_pem, const char *host, int64_t *ret_not_after_ms,
                                 struct error *e);

#endif
