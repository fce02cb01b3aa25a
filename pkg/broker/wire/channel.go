package wire

// ChannelOpen comes from clients.
type ChannelOpen struct{}

func (*ChannelOpen) Class() uint16 { return 20 }
func (*ChannelOpen) ID() uint16    { return 10 }
func (*ChannelOpen) Name() string  { return "channel.open" }

func (*ChannelOpen) walk(c codec) codec {
	c.reservedShort()
	return c
}

// ChannelOpenOK goes to clients.
type ChannelOpenOK struct{}

func (*ChannelOpenOK) Class() uint16 { return 20 }
func (*ChannelOpenOK) ID() uint16    { return 11 }
func (*ChannelOpenOK) Name() string  { return "channel.open-ok" }

func (*ChannelOpenOK) walk(c codec) codec {
	c.reservedLong()
	return c
}

// ChannelFlow goes either way.
type ChannelFlow struct {
	Active bool
}

func (*ChannelFlow) Class() uint16 { return 20 }
func (*ChannelFlow) ID() uint16    { return 20 }
func (*ChannelFlow) Name() string  { return "channel.flow" }

func (m *ChannelFlow) walk(c codec) codec {
	c.bits(&m.Active)
	return c
}

// ChannelFlowOK goes either way.
type ChannelFlowOK struct {
	Active bool
}

func (*ChannelFlowOK) Class() uint16 { return 20 }
func (*ChannelFlowOK) ID() uint16    { return 21 }
func (*ChannelFlowOK) Name() string  { return "channel.flow-ok" }

func (m *ChannelFlowOK) walk(c codec) codec {
	c.bits(&m.Active)
	return c
}

// ChannelClose goes either way. ClassID and MethodID are those of the method that
// caused it, or 0.
type ChannelClose struct {
	ReplyCode         uint16
	ReplyText         string
	ClassID, MethodID uint16
}

func (*ChannelClose) Class() uint16 { return 20 }
func (*ChannelClose) ID() uint16    { return 40 }
func (*ChannelClose) Name() string  { return "channel.close" }

func (m *ChannelClose) walk(c codec) codec {
	c.uint16(&m.ReplyCode)
	c.short(&m.ReplyText)
	c.uint16(&m.ClassID)
	c.uint16(&m.MethodID)
	return c
}

// ChannelCloseOK goes either way.
type ChannelCloseOK struct{}

func (*ChannelCloseOK) Class() uint16      { return 20 }
func (*ChannelCloseOK) ID() uint16         { return 41 }
func (*ChannelCloseOK) Name() string       { return "channel.close-ok" }
func (*ChannelCloseOK) walk(c codec) codec { return c }
