package testscript_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdCertificate: certificate DIR NAME... writes a certificate for hosts of these
// names with its key, DIR/broker.pem and DIR/broker.key, and the authority that it
// is checked against, DIR/ca.pem.
func cmdCertificate(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, "certificate DIR NAME...")
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	validity := x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), BasicConstraintsValid: true}

	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	authority := validity
	authority.SerialNumber, authority.Subject = big.NewInt(1), pkix.Name{CommonName: "test authority"}
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, &authority, &authority, &authorityKey.PublicKey, authorityKey)
	ts.Check(err)
	ts.Check(writePEM(dir, "ca.pem", "CERTIFICATE", der))

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	broker := validity
	broker.SerialNumber, broker.DNSNames = big.NewInt(2), args[1:]
	der, err = x509.CreateCertificate(rand.Reader, &broker, &authority, &key.PublicKey, authorityKey)
	ts.Check(err)
	ts.Check(writePEM(dir, "broker.pem", "CERTIFICATE", der))
	der, err = x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	ts.Check(writePEM(dir, "broker.key", "PRIVATE KEY", der))
}

func writePEM(dir, name, kind string, der []byte) error {
	return os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
