package broker

import (
	"fmt"

	"fleet/pkg/broker/wire"
)

// assembler puts methods, headers and bodies together, each channel for itself.
type assembler struct {
	limits     Limits
	channelMax uint16
	open       map[uint16]*partial
	bytes      int64 // of memory for what is not whole yet
}

// partial is a publish whose content is still coming.
type partial struct {
	method  *wire.BasicPublish
	content *content // nil: the header is awaited
	got     uint64
}

func newAssembler(l Limits, channelMax uint16) *assembler {
	return &assembler{limits: l, channelMax: channelMax, open: map[uint16]*partial{}}
}

// add takes one frame; whole says that cmd is complete. A violation ends the
// connection.
func (a *assembler) add(f wire.Frame) (cmd command, whole bool) {
	cmd.channel = f.Channel
	wrong := func(code uint16, class, method uint16, format string, args ...any) (command, bool) {
		cmd.wrong = &violation{code: code, text: fmt.Sprintf(format, args...), class: class, method: method, whole: true}
		return cmd, true
	}
	if f.Type == wire.FrameHeartbeat {
		if f.Channel != 0 {
			return wrong(505, 0, 0, "heartbeat on channel %d", f.Channel)
		}
		return cmd, false
	}
	if f.Channel > a.channelMax {
		return wrong(530, 20, 10, "number of channels opened (%d) has reached the negotiated channel_max (%d)", a.channelMax, a.channelMax)
	}
	p := a.open[f.Channel]
	switch f.Type {
	case wire.FrameMethod:
		if p != nil {
			return wrong(505, 60, 40, "expected content %s for class 60, got a method instead", p.expected())
		}
		m, err := wire.ParseMethod(f.Payload)
		if err != nil {
			v := asWire(err)
			return wrong(v.Code, v.Class, v.Method, "%s", v.Text)
		}
		if m, ok := m.(*wire.BasicPublish); ok {
			a.open[f.Channel] = &partial{method: m}
			return cmd, false
		}
		cmd.method = m
		return cmd, true
	case wire.FrameHeader:
		if p == nil || p.content != nil {
			return wrong(505, 0, 0, "unexpected content header")
		}
		class, size, properties, err := wire.ParseHeader(f.Payload)
		if err != nil {
			v := asWire(err)
			return wrong(v.Code, 60, 40, "%s", v.Text)
		}
		if class != 60 {
			return wrong(505, 60, 40, "expected content header for class 60, got one for class %d instead", class)
		}
		p.content = &content{properties: append([]byte(nil), properties...), size: size}
		if size <= 4096 {
			p.content.body = make([]byte, 0, size)
		}
		if a.bytes += int64(len(properties) + cap(p.content.body)); a.bytes > 4*a.limits.MessageBytes {
			return wrong(506, 60, 40, "more than %d bytes of messages that are not whole", 4*a.limits.MessageBytes)
		}
	case wire.FrameBody:
		if p == nil || p.content == nil {
			return wrong(505, 60, 40, "expected content header for class 60, got a body instead")
		}
		p.got += uint64(len(f.Payload))
		if p.got > p.content.size {
			return wrong(505, 60, 40, "the body is longer than its header said")
		}
		if p.content.size <= uint64(a.limits.MessageBytes) {
			before := cap(p.content.body)
			p.content.body = append(p.content.body, f.Payload...)
			a.bytes += int64(cap(p.content.body) - before)
			if a.bytes > 4*a.limits.MessageBytes {
				return wrong(506, 60, 40, "more than %d bytes of messages that are not whole", 4*a.limits.MessageBytes)
			}
		}
	}
	if p.got < p.content.size {
		return cmd, false
	}
	a.bytes -= int64(len(p.content.properties) + cap(p.content.body))
	delete(a.open, f.Channel)
	cmd.method, cmd.content = p.method, p.content
	return cmd, true
}

func (p *partial) expected() string {
	if p.content == nil {
		return "header"
	}
	return "body"
}
