package identity

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fleet/pkg/fault"
)

// publicPrefix starts the text form of a public key, so that a pasted key
// names its algorithm.
const publicPrefix = "ed25519:"

// KeyID names a public key: the first 32 hexadecimal digits of the SHA-256 of
// its 32 bytes.
type KeyID string

// PublicKey verifies what a host signed.
type PublicKey struct{ raw ed25519.PublicKey }

// ParsePublicKey reads "ed25519:" and 43 characters of unpadded URL-safe
// base64. It fails with fault.Usage.
func ParsePublicKey(s string) (PublicKey, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(s, publicPrefix))
	key := PublicKey{raw: raw}
	// The decoder skips line ends; a key has one spelling.
	if err != nil || len(raw) != ed25519.PublicKeySize || key.String() != s {
		return PublicKey{}, fault.New(fault.Usage, "%s is not a public key", quote(s)).
			WithHint("a key is one word that starts with %q; `fleet key show` prints it", publicPrefix)
	}
	return key, nil
}

// String is the text form that ParsePublicKey reads.
func (k PublicKey) String() string {
	return publicPrefix + base64.RawURLEncoding.EncodeToString(k.raw)
}

// ID names the key.
func (k PublicKey) ID() KeyID { return KeyID(digestHex(k.raw, 32)) }

// Verify says whether sig is this key's signature over message.
func (k PublicKey) Verify(message, sig []byte) bool {
	return len(k.raw) == ed25519.PublicKeySize && len(sig) == ed25519.SignatureSize &&
		ed25519.Verify(k.raw, message, sig)
}

// Signer uses a host's private key and never shows it.
type Signer struct {
	private ed25519.PrivateKey
	public  PublicKey
}

// Sign returns the 64-byte Ed25519 signature over message.
func (s *Signer) Sign(message []byte) []byte { return ed25519.Sign(s.private, message) }

// Public is the key that verifies what s signs.
func (s *Signer) Public() PublicKey { return s.public }

// NewSigner makes a key that lives in memory only, for tests and test vectors
// when seed is given (32 bytes), random when seed is nil.
func NewSigner(seed []byte) (*Signer, error) {
	if seed == nil {
		seed = make([]byte, ed25519.SeedSize)
		if _, err := rand.Read(seed); err != nil {
			return nil, fmt.Errorf("make key: %w", err)
		}
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("a key seed has %d bytes, this one %d", ed25519.SeedSize, len(seed))
	}
	private := ed25519.NewKeyFromSeed(seed)
	return &Signer{private: private, public: PublicKey{raw: private.Public().(ed25519.PublicKey)}}, nil
}

// The two secret files of a host, mode 0600, each one line of text.
const (
	keyFile    = "host.key"    // "fleet-ed25519-seed:" and the base64 of the seed
	secretFile = "host.secret" // "fleet-secret:" and the base64 of 32 bytes
)

const (
	seedPrefix   = "fleet-ed25519-seed:"
	secretPrefix = "fleet-secret:"
)

// Create makes the host's key and secret in dir where they are missing, and
// returns the key. Files that stand are kept; created says whether the key is
// new.
func Create(dir string) (signer *Signer, created bool, err error) {
	for _, f := range []struct{ name, prefix string }{{keyFile, seedPrefix}, {secretFile, secretPrefix}} {
		path := filepath.Join(dir, f.name)
		if _, err := os.Lstat(path); err == nil {
			continue
		}
		raw := make([]byte, 32)
		if _, err := rand.Read(raw); err != nil {
			return nil, false, fmt.Errorf("make %s: %w", f.name, err)
		}
		if err := writeSecret(path, f.prefix+base64.StdEncoding.EncodeToString(raw)+"\n"); err != nil {
			return nil, false, err
		}
		created = created || f.name == keyFile
	}
	signer, err = LoadSigner(dir)
	return signer, created, err
}

// LoadSigner reads the host's key from dir. It fails with fault.Config where
// the file is missing, malformed, or readable by others.
func LoadSigner(dir string) (*Signer, error) {
	seed, err := readSecret(filepath.Join(dir, keyFile), seedPrefix)
	if err != nil {
		return nil, err
	}
	return NewSigner(seed)
}

// Tokens makes and checks the tokens of local agents. A token derives from the
// host's secret and the gid, so none is stored and all survive a restart (R15).
type Tokens struct{ secret []byte }

// LoadTokens reads the host's secret from dir; errors as LoadSigner.
func LoadTokens(dir string) (*Tokens, error) {
	secret, err := readSecret(filepath.Join(dir, secretFile), secretPrefix)
	if err != nil {
		return nil, err
	}
	return &Tokens{secret: secret}, nil
}

// For is gid's token: the gid, a dot, and 43 characters of base64.
func (t *Tokens) For(gid GID) string {
	return string(gid) + "." + base64.RawURLEncoding.EncodeToString(t.mac(gid))
}

// Check returns the agent that token speaks for. It fails with fault.Refused.
func (t *Tokens) Check(token string) (GID, error) {
	gid, _, _ := strings.Cut(token, ".")
	parsed, err := ParseGID(gid)
	// Texts are compared, not what they decode to: a token has one spelling.
	if err != nil || subtle.ConstantTimeCompare([]byte(token), []byte(t.For(parsed))) != 1 {
		return "", fault.New(fault.Refused, "the agent token is not one of this host's").
			WithHint("unset FLEET_TOKEN to speak as the operator, or register the agent again")
	}
	return parsed, nil
}

func (t *Tokens) mac(gid GID) []byte {
	m := hmac.New(sha256.New, t.secret)
	m.Write([]byte("fleet agent token v1\n" + string(gid)))
	return m.Sum(nil)
}

// Mark binds data to this host: 8 bytes that nobody without the host's secret
// can make, for data that starts with its own purpose.
func (t *Tokens) Mark(data string) [8]byte {
	m := hmac.New(sha256.New, t.secret)
	m.Write([]byte("fleet mark v1\n" + data))
	return [8]byte(m.Sum(nil))
}

// readSecret reads one prefixed base64 line of 32 bytes from a file that only
// its owner can read.
func readSecret(path, prefix string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.Config, "%s is missing", path).WithHint("`fleet init` makes it")
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fault.New(fault.Config, "%s has mode %04o, so others can read it", path, mode).
			WithHint("chmod 600 %s", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	line := strings.TrimSpace(string(text))
	raw, err := base64.StdEncoding.Strict().DecodeString(strings.TrimPrefix(line, prefix))
	if err != nil || !strings.HasPrefix(line, prefix) || len(raw) != 32 {
		return nil, fault.New(fault.Config, "%s is damaged", path).
			WithHint("restore it, or move it away and run `fleet init`")
	}
	return raw, nil
}

// writeSecret writes text to a new 0600 file, whole or not at all.
func writeSecret(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600 by contract
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		// Link refuses an existing file, so two concurrent makers agree on one key.
		if err = os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
