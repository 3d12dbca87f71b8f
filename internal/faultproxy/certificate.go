package faultproxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// certificates makes a certificate for 127.0.0.1, and the authority that has signed it, as PEM. They
// are two, because not every client takes an authority for a server (rustls does not). No key leaves
// the process, and that of the authority is forgotten here.
func certificates() (_ tls.Certificate, authority []byte, err error) {
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return tls.Certificate{}, nil, fmt.Errorf("generating a key: %w", err)
		}
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "faultproxy-ca"}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "faultproxy"}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, keys[0].Public(), keys[0])
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("signing the authority's certificate: %w", err)
	}
	if ca, err = x509.ParseCertificate(der); err != nil { // with its key identifier, which the other one names
		return tls.Certificate{}, nil, fmt.Errorf("reading the authority's certificate: %w", err)
	}
	leaf, err := x509.CreateCertificate(rand.Reader, server, ca, keys[1].Public(), keys[0])
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("signing the server's certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: keys[1]},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
