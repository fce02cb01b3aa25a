package roster

import "encoding/json"

// kindOf is the form of a PRESENCE.
func kindOf(do Do) string {
	var p presence
	if err := json.Unmarshal(do.Body, &p); err != nil {
		return ""
	}
	return p.Is
}
