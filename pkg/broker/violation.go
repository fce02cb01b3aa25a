package broker

import (
	"errors"
	"fmt"

	"fleet/pkg/broker/wire"
)

// violation is what a client did wrong, or can't have. It closes its channel, or
// the whole connection.
type violation struct {
	code          uint16
	text          string // without the code's name
	class, method uint16 // 0: those of the method that caused it
	whole         bool   // the connection, not the channel
}

var codeNames = map[uint16]string{
	311: "CONTENT_TOO_LARGE", 312: "NO_ROUTE", 313: "NO_CONSUMERS", 320: "CONNECTION_FORCED",
	402: "INVALID_PATH", 403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED",
	406: "PRECONDITION_FAILED", 501: "FRAME_ERROR", 502: "SYNTAX_ERROR", 503: "COMMAND_INVALID",
	504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME", 506: "RESOURCE_ERROR", 530: "NOT_ALLOWED",
	540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
}

func replyText(code uint16, format string, args ...any) string {
	return codeNames[code] + " - " + fmt.Sprintf(format, args...)
}

// refuse is a violation that closes the channel.
func refuse(code uint16, format string, args ...any) *violation {
	return &violation{code: code, text: fmt.Sprintf(format, args...)}
}

// forbid is a violation that closes the connection.
func forbid(code uint16, format string, args ...any) *violation {
	return &violation{code: code, text: fmt.Sprintf(format, args...), whole: true}
}

func noQueue(name string) *violation {
	return refuse(404, "no queue '%s' in vhost '/'", name)
}

func noExchange(name string) *violation {
	return refuse(404, "no exchange '%s' in vhost '/'", name)
}

func fromWire(e *wire.Error) *violation {
	return &violation{code: e.Code, text: e.Text, class: e.Class, method: e.Method, whole: true}
}

func asWire(err error) *wire.Error {
	var v *wire.Error
	if errors.As(err, &v) {
		return v
	}
	return &wire.Error{Code: 501, Text: err.Error()}
}
