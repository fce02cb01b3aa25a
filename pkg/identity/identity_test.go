package identity_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// hostileNames may reach a parser from a message, a command line or a file.
var hostileNames = []string{
	"", " ", "a b", "-a", "a-", ".", "a.b", "A", "ä", "a\n", "\na", "a\x00", "a/b", "../a", "a*", "a#", "^a$", "a|b", "a_b", "a\u202e",
	"\x1b[2J", strings.Repeat("a", 64), strings.Repeat("a", 1<<20), "\xff",
}

// A host's name goes into queue names and into regular expressions of broker
// permissions.
func TestR1_HostNames(t *testing.T) {
	for _, ok := range []string{"a", "7", "alpha", "build-box-2", "xn--bcher-kva", strings.Repeat("a", 63)} {
		if h, err := identity.ParseHost(ok); err != nil || string(h) != ok {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range hostileNames {
		h, err := identity.ParseHost(bad)
		refused(t, bad, string(h), err)
	}
}

// refused fails unless err is a usage fault that is safe and short to print.
func refused(t *testing.T, input, got string, err error) {
	t.Helper()
	if !errors.Is(err, fault.Usage) || got != "" {
		t.Errorf("%.40q is taken: %q, %v", input, got, err)
		return
	}
	m := fault.From(err).Message
	for _, r := range m {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			t.Errorf("%.40q is repeated raw: %q", input, m)
		}
	}
	if len(m) > 500 {
		t.Errorf("%.40q makes a message of %d bytes", input, len(m))
	}
}

func TestGIDs(t *testing.T) {
	const canonical = "1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a"
	for _, ok := range []string{canonical, strings.ToUpper(canonical)} {
		if g, err := identity.ParseGID(ok); err != nil || g != canonical {
			t.Errorf("%q: %s, %v", ok, g, err)
		}
	}
	for _, bad := range append([]string{"{" + canonical + "}", "urn:uuid:" + canonical, strings.ReplaceAll(canonical, "-", ""),
		canonical + " ", canonical[:35] + "g", "1f0c9a527-a55-4b1e-9c58-2d6f6f0c8f3a"}, hostileNames...) {
		g, err := identity.ParseGID(bad)
		refused(t, bad, string(g), err)
	}
	seen := map[identity.GID]bool{}
	for range 1000 {
		g := identity.NewGID()
		if p, err := identity.ParseGID(string(g)); err != nil || p != g || seen[g] {
			t.Fatalf("minted %s: %v", g, err)
		}
		seen[g] = true
	}
}

// Peers compute the same gid: the values are part of the protocol.
func TestR15_OperatorGIDIsFixed(t *testing.T) {
	for host, want := range map[identity.Host]identity.GID{
		"alpha": "c14194fd-5d11-5ca1-814f-976683df4f85",
		"beta":  "403d61f6-b3fe-50d1-8a35-ef0c69a00391",
	} {
		got := identity.OperatorGID(host)
		if got != want {
			t.Errorf("the operator of %s is %s, want %s", host, got, want)
		}
		if _, err := identity.ParseGID(string(got)); err != nil {
			t.Error(err)
		}
	}
	if identity.OperatorGID("alpha") == identity.OperatorGID("beta") {
		t.Error("two hosts share an operator")
	}
}

func TestNames(t *testing.T) {
	for _, ok := range []string{"a", "worker", "build.2_x-y", "7", strings.Repeat("a", 63)} {
		if err := identity.CheckName(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range hostileNames {
		if bad == "a-" || bad == "a.b" || bad == "a_b" {
			continue
		}
		refused(t, bad, "", identity.CheckName(bad))
	}
	// A name that could be an id would make addresses ambiguous.
	for _, id := range []string{"1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a", "1f0c9a527a554b1e9c582d6f6f0c8f3a"} {
		refused(t, id, "", identity.CheckName(id))
	}
}

func TestPublicKeys(t *testing.T) {
	s, err := identity.NewSigner(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := s.Public().String()
	k, err := identity.ParsePublicKey(text)
	if err != nil || k.String() != text || k.ID() != s.Public().ID() || len(k.ID()) != 32 {
		t.Errorf("%s: %v", text, err)
	}
	body, _ := strings.CutPrefix(text, "ed25519:")
	last := body[len(body)-1]
	twin := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", last) ^ 1
	for _, bad := range append([]string{
		body, text + "=", text + "A", text[:len(text)-1], "ED25519:" + body, "ed25519: " + body, text + "\n", "\n" + text,
		// The last character has bits to spare; a key must have one spelling.
		"ed25519:" + body[:len(body)-1] + string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[twin]),
		"ed25519:" + body[:20] + "\n" + body[20:],
	}, hostileNames...) {
		k, err := identity.ParsePublicKey(bad)
		got := ""
		if k.Verify(nil, s.Sign(nil)) {
			got = "a working key"
		}
		refused(t, bad, got, err)
	}
}

func TestR18_SignAndVerify(t *testing.T) {
	one, _ := identity.NewSigner(make([]byte, 32))
	two, _ := identity.NewSigner(nil)
	sig := one.Sign([]byte("message"))
	if !one.Public().Verify([]byte("message"), sig) {
		t.Fatal("its own signature does not verify")
	}
	for name, ok := range map[string]bool{
		"other message":  one.Public().Verify([]byte("messagf"), sig),
		"other key":      two.Public().Verify([]byte("message"), sig),
		"short":          one.Public().Verify([]byte("message"), sig[:63]),
		"long":           one.Public().Verify([]byte("message"), append(sig[:64:64], 0)),
		"empty":          one.Public().Verify([]byte("message"), nil),
		"zero key":       identity.PublicKey{}.Verify([]byte("message"), sig),
		"zero key, none": identity.PublicKey{}.Verify(nil, nil),
	} {
		if ok {
			t.Errorf("%s verifies", name)
		}
	}
	for _, n := range []int{0, 31, 33, 64} {
		if _, err := identity.NewSigner(make([]byte, n)); err == nil {
			t.Errorf("a seed of %d bytes is taken", n)
		}
	}
	if s := fmt.Sprint(one.Public()); s != one.Public().String() {
		t.Errorf("printed as %s", s)
	}
}
