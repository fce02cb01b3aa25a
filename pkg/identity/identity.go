// Package identity says who somebody is: hosts, agents' global ids, Ed25519
// keys and the tokens of local agents.
//
// It is the only door to a private key: it makes, stores, loads and uses them,
// and nobody else ever holds one. It does not know what is signed, nor which
// peers are trusted; that is configuration.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"fleet/pkg/fault"
)

// Host names a machine with a gateway: one DNS label, 1 to 63 bytes of a-z,
// 0-9 and inner hyphens.
type Host string

// GID is an agent's global id: a UUID in its canonical lower-case text form.
type GID string

// hostForm is one DNS label (RFC 1123). Broker permissions put the host into
// regular expressions, so nothing else may pass.
var hostForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ParseHost checks s. It fails with fault.Usage.
func ParseHost(s string) (Host, error) {
	if !hostForm.MatchString(s) {
		return "", fault.New(fault.Usage, "%s is not a host name", quote(s)).
			WithHint("a host is one DNS label: a-z, 0-9 and inner hyphens, at most 63 bytes")
	}
	return Host(s), nil
}

// NewGID mints a random agent id.
func NewGID() GID { return GID(uuid.NewString()) }

// operatorSpace is the namespace under which operators' gids are derived. It is
// part of the protocol: peers compute the same gid to check it (R15, R19).
var operatorSpace = uuid.MustParse("6f1c1f0e-5b0a-5c6e-9f5a-0d7b7a0f1e11")

// OperatorGID is the gid of host's operator, the person or script at its
// command line. It derives from the host's name, so that any peer can check it.
func OperatorGID(host Host) GID {
	return GID(uuid.NewSHA1(operatorSpace, []byte("operator@"+host)).String())
}

// ParseGID checks s and returns it in canonical form. It fails with
// fault.Usage.
func ParseGID(s string) (GID, error) {
	u, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return "", fault.New(fault.Usage, "%s is not an agent id", quote(s)).
			WithHint("an agent id is a UUID such as 1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a")
	}
	return GID(u.String()), nil
}

// nameForm keeps names unambiguous beside gids, hosts and broadcast targets.
var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckName says whether s may name an agent or a group. It fails with
// fault.Usage.
func CheckName(s string) error {
	if !nameForm.MatchString(s) {
		return fault.New(fault.Usage, "%s is not a name", quote(s)).
			WithHint("a name has 1 to 63 of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit")
	}
	if _, err := uuid.Parse(s); err == nil {
		return fault.New(fault.Usage, "%s has the form of an agent id and can't be a name", quote(s))
	}
	return nil
}

// quote shows hostile text on one line, cut to a readable length.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// digestHex is the lower-case hexadecimal SHA-256 of b, cut to n digits.
func digestHex(b []byte, n int) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])[:n]
}
