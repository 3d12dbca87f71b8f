package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// lookEvery is how long a certificate is used before its files are read again. The
// kubelet replaces the files of a mounted Secret without telling anybody.
const lookEvery = time.Second

// A keyPair is the certificate that a server shows, with its private key.
type keyPair struct {
	directory string
	logger    klog.Logger
	notAfter  prometheus.Gauge

	mu        sync.Mutex
	current   *tls.Certificate
	files     []byte // that current was made from
	looked    time.Time
	complaint string // the last one, so that it is logged once
}

// get returns the certificate for a new connection. Connections that are open keep theirs.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.looked) >= lookEvery {
		k.looked = time.Now()
		k.reload()
	}
	if k.current == nil {
		return nil, fmt.Errorf("there is no certificate in %s", k.directory)
	}
	return k.current, nil
}

// reload reads the files. While they do not make a pair, because they are missing or only one
// of them is new, the certificate from before stays.
func (k *keyPair) reload() {
	certificate, err := os.ReadFile(filepath.Join(k.directory, "tls.crt"))
	var key []byte
	if err == nil {
		key, err = os.ReadFile(filepath.Join(k.directory, "tls.key"))
	}
	files := bytes.Join([][]byte{certificate, key}, []byte{0})
	if err == nil && bytes.Equal(files, k.files) {
		return
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.X509KeyPair(certificate, key)
	}
	if err != nil {
		if err.Error() != k.complaint {
			k.complaint = err.Error()
			k.logger.Info("The certificate is not (re)loaded", "because", err.Error(), "inUse", k.current != nil)
		}
		return
	}
	k.current, k.files, k.complaint = &pair, files, ""
	k.notAfter.Set(float64(pair.Leaf.NotAfter.Unix()))
	k.logger.Info("Certificate loaded", "serial", pair.Leaf.SerialNumber, "issuer", pair.Leaf.Issuer.CommonName, "hosts", hosts(&pair), "notAfter", pair.Leaf.NotAfter)
}

// wait returns when there is a certificate, or with ctx's error.
func (k *keyPair) wait(ctx context.Context) error {
	for {
		if _, err := k.get(nil); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery / 4):
		}
	}
}

func hosts(pair *tls.Certificate) []string {
	all := append([]string{}, pair.Leaf.DNSNames...)
	for _, ip := range pair.Leaf.IPAddresses {
		all = append(all, ip.String())
	}
	return all
}
