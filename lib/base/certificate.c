#include "base/certificate.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/mem.h"

#define EARLIER_S 300 /* validity begins before the present by this: clocks differ */
#define SERIAL_BITS 159
#define HOST_MAX 253

static void cleanup_x509(X509 **x) { X509_free(*x); }
static void cleanup_pkey(EVP_PKEY **k) { EVP_PKEY_free(*k); }
static void cleanup_bio(BIO **b) { BIO_free_all(*b); }
#define auto_x509 __attribute__((cleanup(cleanup_x509)))
#define auto_pkey __attribute__((cleanup(cleanup_pkey)))
#define auto_bio __attribute__((cleanup(cleanup_bio)))

/* What OpenSSL says, behind what we wanted. Its queue is empty afterwards. */
static int fail(struct error *e, enum error_kind kind, const char *what)
{
    char text[160] = "no reason given";
    unsigned long code = ERR_get_error();

    if (code != 0)
        ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return error_set(e, kind, "%s: %s", what, text);
}

void certificate_release(struct certificate *c)
{
    if (c->key_pem != NULL)
        crypto_wipe(c->key_pem, strlen(c->key_pem));
    free(c->key_pem);
    free(c->pem);
    *c = (struct certificate){ .pem = NULL };
}

/* ---- PEM -------------------------------------------------------------------------------------------------------------- */

/* A pass phrase is never asked for: a key that has one cannot be read. */
static int no_password(char *buf, int size, int writing, void *ctx)
{
    (void)buf, (void)size, (void)writing, (void)ctx;
    return -1;
}

static BIO *reader(const char *pem)
{
    size_t len = pem != NULL ? strnlen(pem, CERTIFICATE_PEM_MAX + 1) : 0;

    return len > 0 && len <= CERTIFICATE_PEM_MAX ? BIO_new_mem_buf(pem, (int)len) : NULL;
}

static int read_certificate(const char *pem, X509 **ret, struct error *e)
{
    auto_bio BIO *in = reader(pem);

    *ret = in != NULL ? PEM_read_bio_X509(in, NULL, no_password, NULL) : NULL;
    return *ret != NULL ? 0 : fail(e, ERROR_INVALID, "this is no certificate in PEM");
}

static int read_key(const char *pem, EVP_PKEY **ret, struct error *e)
{
    auto_bio BIO *in = reader(pem);

    *ret = in != NULL ? PEM_read_bio_PrivateKey(in, NULL, no_password, NULL) : NULL;
    return *ret != NULL ? 0 : fail(e, ERROR_INVALID, "this is no private key in PEM");
}

static char *text_of(BIO *out)
{
    char *bytes = NULL;
    long len = BIO_get_mem_data(out, &bytes);

    return len > 0 ? xstrndup(bytes, (size_t)len) : NULL;
}

static int write_pair(X509 *x, EVP_PKEY *key, struct certificate *ret, struct error *e)
{
    auto_bio BIO *certificate = BIO_new(BIO_s_mem());
    auto_bio BIO *secret = BIO_new(BIO_s_secmem());

    if (certificate == NULL || secret == NULL || PEM_write_bio_X509(certificate, x) != 1 ||
        PEM_write_bio_PrivateKey(secret, key, NULL, NULL, 0, NULL, NULL) != 1)
        return fail(e, ERROR_BUG, "write a certificate as PEM");
    *ret = (struct certificate){ .pem = text_of(certificate), .key_pem = text_of(secret) };
    return 0;
}

/* ---- making ----------------------------------------------------------------------------------------------------------- */

static bool set_serial(X509 *x)
{
    BIGNUM *number = BN_new();
    bool well = number != NULL && BN_rand(number, SERIAL_BITS, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
                BN_to_ASN1_INTEGER(number, X509_get_serialNumber(x)) != NULL;

    BN_free(number);
    return well;
}

static bool add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;

    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool well = extension != NULL && X509_add_ext(x, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return well;
}

static bool fill(X509 *x, const char *name, X509 *issuer, EVP_PKEY *key, int64_t now_ms, int64_t lifetime_ms)
{
    X509_NAME *subject = X509_get_subject_name(x);
    time_t from = (time_t)(now_ms / 1000 - EARLIER_S), until = (time_t)((now_ms + lifetime_ms) / 1000);

    return X509_set_version(x, X509_VERSION_3) == 1 && set_serial(x) && ASN1_TIME_set(X509_getm_notBefore(x), from) != NULL &&
           ASN1_TIME_set(X509_getm_notAfter(x), until) != NULL &&
           X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0) == 1 &&
           X509_set_issuer_name(x, issuer != NULL ? X509_get_subject_name(issuer) : subject) == 1 && X509_set_pubkey(x, key) == 1;
}

int certificate_make_authority(const char *name, const char *key_pem, int64_t now_ms, int64_t lifetime_ms, struct certificate *ret,
                               struct error *e)
{
    auto_pkey EVP_PKEY *key = NULL;
    auto_x509 X509 *x = X509_new();

    if (key_pem != NULL && read_key(key_pem, &key, e) < 0)
        return -1;
    if (key == NULL)
        key = EVP_EC_gen("P-256");
    if (key == NULL || x == NULL || !fill(x, name, NULL, key, now_ms, lifetime_ms) ||
        !add_extension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
        !add_extension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") || !add_extension(x, x, NID_subject_key_identifier, "hash") ||
        X509_sign(x, key, EVP_sha256()) == 0)
        return fail(e, ERROR_BUG, "make a certificate authority");
    return write_pair(x, key, ret, e);
}

static bool is_address(const char *host)
{
    uint8_t bytes[16];

    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

/* OpenSSL reads the name out of a text with a syntax of its own: nothing but what host names are made of gets in. */
static int host_name(const char *host, char ret_text[HOST_MAX + 8], struct error *e)
{
    static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:";

    if (host[0] == '\0' || strlen(host) > HOST_MAX || host[strspn(host, ALLOWED)] != '\0' || (strchr(host, ':') != NULL && !is_address(host)))
        return error_set(e, ERROR_INVALID, "\"%.100s\" is no name of a host for a certificate", host);
    (void)snprintf(ret_text, HOST_MAX + 8, "%s:%s", is_address(host) ? "IP" : "DNS", host);
    return 0;
}

int certificate_issue(const struct certificate *authority, const char *host, int64_t now_ms, int64_t lifetime_ms, struct certificate *ret,
                      struct error *e)
{
    char name[HOST_MAX + 8];
    auto_x509 X509 *issuer = NULL;
    auto_pkey EVP_PKEY *issuer_key = NULL;

    if (host_name(host, name, e) < 0 || read_certificate(authority->pem, &issuer, e) < 0 || read_key(authority->key_pem, &issuer_key, e) < 0)
        return -1;
    auto_pkey EVP_PKEY *key = EVP_EC_gen("P-256");
    auto_x509 X509 *x = X509_new();
    if (key == NULL || x == NULL || !fill(x, "ringmaster-operator", issuer, key, now_ms, lifetime_ms) ||
        !add_extension(x, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
        !add_extension(x, issuer, NID_key_usage, "critical,digitalSignature") || !add_extension(x, issuer, NID_ext_key_usage, "serverAuth") ||
        !add_extension(x, issuer, NID_subject_alt_name, name) || !add_extension(x, issuer, NID_subject_key_identifier, "hash") ||
        !add_extension(x, issuer, NID_authority_key_identifier, "keyid") || X509_sign(x, issuer_key, EVP_sha256()) == 0)
        return fail(e, ERROR_BUG, "issue a certificate");
    return write_pair(x, key, ret, e);
}

/* ---- checking --------------------------------------------------------------------------------------------------------- */

static int read_pair(const struct certificate *c, X509 **ret, int64_t *ret_not_after_ms, struct error *e)
{
    auto_x509 X509 *x = NULL;
    auto_pkey EVP_PKEY *key = NULL;
    struct tm end;

    if (read_certificate(c->pem, &x, e) < 0 || read_key(c->key_pem, &key, e) < 0)
        return -1;
    if (X509_check_private_key(x, key) != 1)
        return fail(e, ERROR_INVALID, "certificate and key do not belong together");
    if (ASN1_TIME_to_tm(X509_get0_notAfter(x), &end) != 1)
        return fail(e, ERROR_INVALID, "the certificate's end cannot be read");
    *ret_not_after_ms = (int64_t)timegm(&end) * 1000;
    *ret = TAKE(x);
    return 0;
}

int certificate_check_authority(const struct certificate *c, int64_t *ret_not_after_ms, struct error *e)
{
    auto_x509 X509 *x = NULL;
    int64_t not_after_ms = 0;

    if (read_pair(c, &x, &not_after_ms, e) < 0)
        return -1;
    if (X509_check_ca(x) != 1)
        return error_set(e, ERROR_INVALID, "the certificate is not an authority's");
    *ret_not_after_ms = not_after_ms;
    return 0;
}

int certificate_check(const struct certificate *c, const char *authority_pem, const char *host, int64_t *ret_not_after_ms, struct error *e)
{
    auto_x509 X509 *x = NULL;
    auto_x509 X509 *issuer = NULL;
    int64_t not_after_ms = 0;

    if (read_certificate(authority_pem, &issuer, e) < 0 || read_pair(c, &x, &not_after_ms, e) < 0)
        return -1;
    EVP_PKEY *signer = X509_get0_pubkey(issuer);
    if (X509_check_issued(issuer, x) != X509_V_OK || signer == NULL || X509_verify(x, signer) != 1) {
        ERR_clear_error();
        return error_set(e, ERROR_INVALID, "the certificate was not issued by this authority");
    }
    int fits = is_address(host) ? X509_check_ip_asc(x, host, 0) : X509_check_host(x, host, 0, 0, NULL);
    if (fits != 1)
        return error_set(e, ERROR_INVALID, "the certificate is not for %.100s", host);
    *ret_not_after_ms = not_after_ms;
    return 0;
}
