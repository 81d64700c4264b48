package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
)

// Spread is where from 0 to 1 a certificate stands among all, the same each time. What is done about those of many that were made together
// is done at times that are apart by it.
func Spread(cert *x509.Certificate) float64 {
	sum := sha256.Sum256(cert.Raw)
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}
