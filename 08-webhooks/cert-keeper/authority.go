package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// The keys of the CA's Secret. A rotation has three phases, and the Secret says which one it
// is in, so that a new process goes on where the last one was killed:
//
//	steady     signing                 trusted: signing
//	introduce  signing (old), next     trusted: old and next; until everybody who verifies has both
//	replace    signing (was next)      trusted: old and new; until everybody who serves has a new leaf
const (
	signingCert = "signing.crt"
	signingKey  = "signing.key"
	nextCert    = "next.crt"
	nextKey     = "next.key"
	trustedCert = "trusted.crt" // what goes into caBundle
)

// An authority is what the Secret of the CA holds.
type authority struct {
	signing issuer
	next    *issuer             // during "introduce"
	trusted []*x509.Certificate // during a rotation two
}

// An issuer is a CA's certificate with its private key.
type issuer struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// newAuthority makes a CA that is trusted alone.
func newAuthority(lifetime time.Duration) (*authority, error) {
	first, err := newIssuer(lifetime)
	if err != nil {
		return nil, err
	}
	return &authority{signing: *first, trusted: []*x509.Certificate{first.certificate}}, nil
}

// introduce begins a rotation: from now on the next CA is trusted, too, and signs nothing.
func (a *authority) introduce(lifetime time.Duration) (*authority, error) {
	next, err := newIssuer(lifetime)
	if err != nil {
		return nil, err
	}
	return &authority{signing: a.signing, next: next, trusted: []*x509.Certificate{a.signing.certificate, next.certificate}}, nil
}

// replace lets the next CA sign, while the old one is still trusted.
func (a *authority) replace() *authority {
	return &authority{signing: *a.next, trusted: a.trusted}
}

// retire ends the trust in the old CA.
func (a *authority) retire() *authority {
	return &authority{signing: a.signing, trusted: []*x509.Certificate{a.signing.certificate}}
}

func (a *authority) phase() string {
	switch {
	case a.next != nil:
		return "introduce"
	case len(a.trusted) > 1:
		return "replace"
	}
	return "steady"
}

// bundle is what a client has to trust, as PEM.
func (a *authority) bundle() []byte {
	var all []byte
	for _, c := range a.trusted {
		all = append(all, certificatePEM(c.Raw)...)
	}
	return all
}

// data is what the Secret of the CA holds.
func (a *authority) data() (map[string][]byte, error) {
	key, err := keyPEM(a.signing.key)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{signingCert: certificatePEM(a.signing.certificate.Raw), signingKey: key, trustedCert: a.bundle()}
	if a.next != nil {
		if key, err = keyPEM(a.next.key); err != nil {
			return nil, err
		}
		data[nextCert], data[nextKey] = certificatePEM(a.next.certificate.Raw), key
	}
	return data, nil
}

// readAuthority reads what data has made. It refuses what makes no sense: everything that
// follows from it would be refused by somebody else, later.
func readAuthority(data map[string][]byte) (*authority, error) {
	signing, err := readIssuer(data[signingCert], data[signingKey])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", signingCert, signingKey, err)
	}
	a := &authority{signing: *signing}
	if len(data[nextCert]) > 0 {
		if a.next, err = readIssuer(data[nextCert], data[nextKey]); err != nil {
			return nil, fmt.Errorf("%s and %s: %w", nextCert, nextKey, err)
		}
	}
	for rest := data[trustedCert]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", trustedCert, err)
		}
		a.trusted = append(a.trusted, c)
	}
	if !slices.ContainsFunc(a.trusted, signing.certificate.Equal) || a.next != nil && !slices.ContainsFunc(a.trusted, a.next.certificate.Equal) {
		return nil, fmt.Errorf("%s lacks a CA that signs, or will sign", trustedCert)
	}
	return a, nil
}

func readIssuer(certificate, key []byte) (*issuer, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("it is no CA")
	}
	return &issuer{pair.Leaf, signer}, nil
}

// validity begins a little earlier than now, for machines whose clocks are behind.
func validity(lifetime time.Duration) (notBefore, notAfter time.Time) {
	now := time.Now()
	return now.Add(-min(time.Minute, lifetime/10)), now.Add(lifetime)
}

func newIssuer(lifetime time.Duration) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	notBefore, notAfter := validity(lifetime)
	template := &x509.Certificate{
		// Two CAs in one bundle must be told apart: by the name, and by SubjectKeyId, which
		// CreateCertificate adds.
		Subject:               pkix.Name{CommonName: "cert-keeper " + time.Now().UTC().Format("20060102T150405.000")},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it signs leaves and no further CA
		KeyUsage:              x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(raw)
	return &issuer{certificate, key}, err
}

// leaf issues a serving certificate with a new key for some hosts: names or IP addresses.
func (i *issuer) leaf(hosts []string, lifetime time.Duration) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	notBefore, notAfter := validity(lifetime)
	template := &x509.Certificate{
		NotBefore:   notBefore,
		NotAfter:    notAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotAfter.After(i.certificate.NotAfter) {
		template.NotAfter = i.certificate.NotAfter
	}
	// The name is only for people. What a client compares are the alternative names, since Go
	// 1.15 nothing else.
	template.Subject.CommonName = hosts[0]
	if len(hosts[0]) > 64 { // ub-common-name of RFC 5280
		template.Subject.CommonName = ""
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, i.certificate, private.Public(), i.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(private)
	return certificatePEM(raw), key, err
}

// signed reports whether this CA has signed a certificate.
func (i *issuer) signed(certificate []byte) bool {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return false
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	return err == nil && leaf.CheckSignatureFrom(i.certificate) == nil
}

// wrongWith says why a leaf has to be replaced now, or, if it need not, when that will be.
func (i *issuer) wrongWith(certificate, key []byte, hosts []string, now time.Time) (next time.Time, why string) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return next, err.Error()
	}
	leaf := pair.Leaf
	if leaf.CheckSignatureFrom(i.certificate) != nil {
		return next, "another CA has signed it"
	}
	// One that ends with its CA stays: another one would end then, too. The next CA brings the next leaf.
	if old(leaf, now) && leaf.NotAfter.Before(i.certificate.NotAfter) {
		return next, fmt.Sprintf("it ends at %s", leaf.NotAfter.Format(time.RFC3339))
	}
	has := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		has = append(has, ip.String())
	}
	wanted := slices.Clone(hosts)
	slices.Sort(has)
	slices.Sort(wanted)
	if !slices.Equal(has, wanted) {
		return next, fmt.Sprintf("it is for %v", has)
	}
	return renewal(leaf), ""
}

// old reports whether less than a third of a certificate's life is left.
func old(c *x509.Certificate, now time.Time) bool { return !now.Before(renewal(c)) }

// renewal is when a certificate has to be replaced.
func renewal(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

func certificatePEM(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

func keyPEM(key crypto.Signer) ([]byte, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), nil
}
