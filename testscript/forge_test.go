package testscript_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

func init() { commands["forge"] = cmdForge }

const forgeUsage = `forge [-flip] [-unsigned] [-size BYTES] [-raw] HOST VAR [FIELD=VALUE...]
	writes an envelope into the file VAR, signed with HOST's key, and sets VAR_KEY and
	VAR_SIG (its headers), VAR_SHA (of its bytes) and VAR_ID. It is a good SEND of HOST's
	operator but for the FIELDs: FIELD= leaves one out, text is the body's, ts is a
	duration from now. -flip changes a bit of the text after signing, -unsigned leaves
	both headers empty, -size pads the text, -raw signs the file VAR as it stands.`

// cmdForge makes what a hostile or broken peer could publish.
func cmdForge(ts *testscript.TestScript, neg bool, args []string) {
	f := flagsOf("forge")
	flip, unsigned := f.Bool("flip", false, ""), f.Bool("unsigned", false, "")
	size, asIs := f.Int("size", 0, ""), f.Bool("raw", false, "")
	ts.Check(f.Parse(args))
	usage(ts, !neg && f.NArg() >= 2, forgeUsage)
	host, name := f.Arg(0), f.Arg(1)
	path := ts.MkAbs(name)
	signer, err := identity.LoadSigner(filepath.Join(worldOf(ts).dir, host))
	ts.Check(err)

	var body []byte
	if *asIs {
		body = []byte(ts.ReadFile(name))
	} else {
		fields := goodSend(identity.Host(host))
		ts.Check(alter(fields, f.Args()[2:]))
		body, err = encodeForged(fields, *size)
		ts.Check(err)
		id, _ := fields["id"].(string) // left out: there is none
		ts.Setenv(name+"_ID", id)
	}
	sealed := envelope.SealBytes(body, signer)
	if *flip {
		body = bytes.Clone(body)
		body[bytes.Index(body, []byte(`"text":"`))+len(`"text":"`)] ^= 1
	}
	if *unsigned {
		sealed.Key, sealed.Signature = "", ""
	}
	ts.Check(os.WriteFile(path, body, 0o600))
	ts.Setenv(name+"_KEY", string(sealed.Key))
	ts.Setenv(name+"_SIG", sealed.Signature)
	ts.Setenv(name+"_SHA", fmt.Sprintf("%x", sha256.Sum256(body)))
}

// goodSend is a SEND that a peer of host accepts once it has a recipient.
func goodSend(host identity.Host) map[string]any {
	return map[string]any{
		"v": envelope.Version, "kind": string(envelope.Send), "id": string(envelope.NewID()),
		"trace": string(envelope.NewTrace()), "from": string(identity.OperatorGID(host)), "from_host": string(host),
		"ts": envelope.At(time.Now()), "body": map[string]any{"text": "text"},
	}
}

// alter sets fields from FIELD=VALUE words.
func alter(fields map[string]any, words []string) error {
	for _, w := range words {
		field, value, ok := strings.Cut(w, "=")
		switch {
		case !ok:
			return fmt.Errorf("%q is not FIELD=VALUE", w)
		case value == "":
			delete(fields, field)
		case field == "text":
			fields["body"] = map[string]any{"text": value}
		case field == "ts":
			d, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			fields["ts"] = envelope.At(time.Now().Add(d))
		case field == "from" && strings.HasPrefix(value, "operator@"):
			fields["from"] = string(identity.OperatorGID(identity.Host(strings.TrimPrefix(value, "operator@"))))
		default:
			fields[field] = value
		}
	}
	return nil
}

// encodeForged is fields as JSON, its text padded until the whole has size bytes.
func encodeForged(fields map[string]any, size int) ([]byte, error) {
	b, err := json.Marshal(fields)
	if err != nil || len(b) >= size {
		return b, err
	}
	text, _ := fields["body"].(map[string]any)["text"].(string) // as goodSend and alter made it
	fields["body"] = map[string]any{"text": text + strings.Repeat("x", size-len(b))}
	return json.Marshal(fields)
}
