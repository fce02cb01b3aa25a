package testscript_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdJSONGet: jsonget VAR FILE PATH. Also prints the value.
func cmdJSONGet(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 3, "jsonget VAR FILE PATH")
	v, err := jsonGet(ts.ReadFile(args[1]), args[2])
	if err != nil {
		ts.Fatalf("%s of %s: %v", args[2], args[1], err)
	}
	ts.Setenv(args[0], v)
	fmt.Fprintln(ts.Stdout(), v)
}

// jsonGet follows path through the one document in text, or through the array of
// them where there are several. A path is made of .field, [index] (from the end if
// negative) and [field=value], which picks the first such element. A string comes
// back bare, anything else as JSON.
func jsonGet(text, path string) (string, error) {
	var docs []any
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	for {
		var d any
		err := dec.Decode(&d)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("document %d is no JSON: %w", len(docs)+1, err)
		}
		docs = append(docs, d)
	}
	var v any = docs
	if len(docs) == 1 {
		v = docs[0]
	}
	for path != "" && path != "." {
		step := path
		if i := strings.IndexByte(path, ']'); path[0] == '[' && i > 0 {
			step = path[:i+1] // a value may hold dots
		} else if i := strings.IndexAny(path[1:], ".["); i >= 0 {
			step = path[:i+1]
		}
		next, err := jsonStep(v, step)
		if err != nil {
			return "", err
		}
		v, path = next, path[len(step):]
	}
	if s, ok := v.(string); ok {
		return s, nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

func jsonStep(v any, step string) (any, error) {
	inner, isIndex := strings.CutPrefix(step, "[")
	if !isIndex {
		object, ok := v.(map[string]any)
		field, found := object[strings.TrimPrefix(step, ".")]
		if !ok || !found {
			return nil, fmt.Errorf("there is no %s in %v", step, v)
		}
		return field, nil
	}
	array, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%s wants an array, not %v", step, v)
	}
	inner = strings.TrimSuffix(inner, "]")
	if name, want, ok := strings.Cut(inner, "="); ok {
		for _, e := range array {
			if object, ok := e.(map[string]any); ok && fmt.Sprint(object[name]) == want {
				return e, nil
			}
		}
		return nil, fmt.Errorf("no element has %s in %v", inner, array)
	}
	i, err := strconv.Atoi(inner)
	if err == nil && i < 0 {
		i += len(array)
	}
	if err != nil || i < 0 || i >= len(array) {
		return nil, fmt.Errorf("there is no element %s of %d", inner, len(array))
	}
	return array[i], nil
}

func TestJSONPaths(t *testing.T) {
	const doc = `{"agents":[{"name":"a","n":1},{"name":"b","n":2,"deep":{"x":["y"]}}],"ok":true,"none":null}`
	for _, c := range []struct{ text, path, want string }{
		{doc, ".ok", "true"},
		{doc, ".none", "null"},
		{doc, ".agents[0].name", "a"},
		{doc, ".agents[-1].n", "2"},
		{doc, ".agents[name=b].deep.x[0]", "y"},
		{doc, ".agents[name=b].deep", `{"x":["y"]}`},
		{`{"a":1}` + "\n" + `{"a":2}`, "[1].a", "2"},
		{`[{"v":"1.2[3"}]`, "[v=1.2[3].v", "1.2[3"},
		{`[]`, ".", "[]"},
	} {
		if got, err := jsonGet(c.text, c.path); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.path, got, err, c.want)
		}
	}
	for _, path := range []string{".agents[2]", ".agents[name=c]", ".nothing", ".ok.x", ".ok[0]"} {
		if got, err := jsonGet(doc, path); err == nil {
			t.Errorf("%s: got %q, want an error", path, got)
		}
	}
}
