package wire

// ConnectionStart goes to clients. Mechanisms and Locales are lists with spaces
// between.
type ConnectionStart struct {
	VersionMajor, VersionMinor uint8
	ServerProperties           Table
	Mechanisms, Locales        string
}

func (*ConnectionStart) Class() uint16 { return 10 }
func (*ConnectionStart) ID() uint16    { return 10 }
func (*ConnectionStart) Name() string  { return "connection.start" }

func (m *ConnectionStart) walk(c codec) codec {
	c.uint8(&m.VersionMajor)
	c.uint8(&m.VersionMinor)
	c.table(&m.ServerProperties)
	c.long(&m.Mechanisms)
	c.long(&m.Locales)
	return c
}

// ConnectionStartOK comes from clients. The form of Response is the mechanism's.
type ConnectionStartOK struct {
	ClientProperties            Table
	Mechanism, Response, Locale string
}

func (*ConnectionStartOK) Class() uint16 { return 10 }
func (*ConnectionStartOK) ID() uint16    { return 11 }
func (*ConnectionStartOK) Name() string  { return "connection.start-ok" }

func (m *ConnectionStartOK) walk(c codec) codec {
	c.table(&m.ClientProperties)
	c.short(&m.Mechanism)
	c.long(&m.Response)
	c.short(&m.Locale)
	return c
}

// ConnectionSecure goes to clients.
type ConnectionSecure struct {
	Challenge string
}

func (*ConnectionSecure) Class() uint16 { return 10 }
func (*ConnectionSecure) ID() uint16    { return 20 }
func (*ConnectionSecure) Name() string  { return "connection.secure" }

func (m *ConnectionSecure) walk(c codec) codec {
	c.long(&m.Challenge)
	return c
}

// ConnectionSecureOK comes from clients.
type ConnectionSecureOK struct {
	Response string
}

func (*ConnectionSecureOK) Class() uint16 { return 10 }
func (*ConnectionSecureOK) ID() uint16    { return 21 }
func (*ConnectionSecureOK) Name() string  { return "connection.secure-ok" }

func (m *ConnectionSecureOK) walk(c codec) codec {
	c.long(&m.Response)
	return c
}

// ConnectionTune goes to clients. FrameMax is in bytes, Heartbeat in seconds; 0 is
// no limit and no heartbeat.
type ConnectionTune struct {
	ChannelMax uint16
	FrameMax   uint32
	Heartbeat  uint16
}

func (*ConnectionTune) Class() uint16 { return 10 }
func (*ConnectionTune) ID() uint16    { return 30 }
func (*ConnectionTune) Name() string  { return "connection.tune" }

func (m *ConnectionTune) walk(c codec) codec {
	c.uint16(&m.ChannelMax)
	c.uint32(&m.FrameMax)
	c.uint16(&m.Heartbeat)
	return c
}

// ConnectionTuneOK comes from clients, with the units of ConnectionTune.
type ConnectionTuneOK struct {
	ChannelMax uint16
	FrameMax   uint32
	Heartbeat  uint16
}

func (*ConnectionTuneOK) Class() uint16 { return 10 }
func (*ConnectionTuneOK) ID() uint16    { return 31 }
func (*ConnectionTuneOK) Name() string  { return "connection.tune-ok" }

func (m *ConnectionTuneOK) walk(c codec) codec {
	c.uint16(&m.ChannelMax)
	c.uint32(&m.FrameMax)
	c.uint16(&m.Heartbeat)
	return c
}

// ConnectionOpen comes from clients.
type ConnectionOpen struct {
	VirtualHost string
}

func (*ConnectionOpen) Class() uint16 { return 10 }
func (*ConnectionOpen) ID() uint16    { return 40 }
func (*ConnectionOpen) Name() string  { return "connection.open" }

func (m *ConnectionOpen) walk(c codec) codec {
	c.short(&m.VirtualHost)
	c.reservedShort()
	c.reservedBit()
	return c
}

// ConnectionOpenOK goes to clients.
type ConnectionOpenOK struct{}

func (*ConnectionOpenOK) Class() uint16 { return 10 }
func (*ConnectionOpenOK) ID() uint16    { return 41 }
func (*ConnectionOpenOK) Name() string  { return "connection.open-ok" }

func (*ConnectionOpenOK) walk(c codec) codec {
	c.reservedShort()
	return c
}

// ConnectionClose goes either way. ClassID and MethodID are those of the method
// that caused it, or 0.
type ConnectionClose struct {
	ReplyCode         uint16
	ReplyText         string
	ClassID, MethodID uint16
}

func (*ConnectionClose) Class() uint16 { return 10 }
func (*ConnectionClose) ID() uint16    { return 50 }
func (*ConnectionClose) Name() string  { return "connection.close" }

func (m *ConnectionClose) walk(c codec) codec {
	c.uint16(&m.ReplyCode)
	c.short(&m.ReplyText)
	c.uint16(&m.ClassID)
	c.uint16(&m.MethodID)
	return c
}

// ConnectionCloseOK goes either way.
type ConnectionCloseOK struct{}

func (*ConnectionCloseOK) Class() uint16      { return 10 }
func (*ConnectionCloseOK) ID() uint16         { return 51 }
func (*ConnectionCloseOK) Name() string       { return "connection.close-ok" }
func (*ConnectionCloseOK) walk(c codec) codec { return c }

// ConnectionBlocked goes to clients that have the capability: publishes are not
// read for now.
type ConnectionBlocked struct {
	Reason string
}

func (*ConnectionBlocked) Class() uint16 { return 10 }
func (*ConnectionBlocked) ID() uint16    { return 60 }
func (*ConnectionBlocked) Name() string  { return "connection.blocked" }

func (m *ConnectionBlocked) walk(c codec) codec {
	c.short(&m.Reason)
	return c
}

// ConnectionUnblocked goes to clients, after ConnectionBlocked.
type ConnectionUnblocked struct{}

func (*ConnectionUnblocked) Class() uint16      { return 10 }
func (*ConnectionUnblocked) ID() uint16         { return 61 }
func (*ConnectionUnblocked) Name() string       { return "connection.unblocked" }
func (*ConnectionUnblocked) walk(c codec) codec { return c }

// ConnectionUpdateSecret comes from clients whose secret expires.
type ConnectionUpdateSecret struct {
	NewSecret, Reason string
}

func (*ConnectionUpdateSecret) Class() uint16 { return 10 }
func (*ConnectionUpdateSecret) ID() uint16    { return 70 }
func (*ConnectionUpdateSecret) Name() string  { return "connection.update-secret" }

func (m *ConnectionUpdateSecret) walk(c codec) codec {
	c.long(&m.NewSecret)
	c.short(&m.Reason)
	return c
}

// ConnectionUpdateSecretOK goes to clients.
type ConnectionUpdateSecretOK struct{}

func (*ConnectionUpdateSecretOK) Class() uint16      { return 10 }
func (*ConnectionUpdateSecretOK) ID() uint16         { return 71 }
func (*ConnectionUpdateSecretOK) Name() string       { return "connection.update-secret-ok" }
func (*ConnectionUpdateSecretOK) walk(c codec) codec { return c }
