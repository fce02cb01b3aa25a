package broker

import (
	"errors"
	"syscall"
	"time"
)

// Limits bounds what clients can take. Zero fields stand for the defaults.
type Limits struct {
	Connections int // 1,000
	Channels    int // per connection: 2,047, as RabbitMQ's
	Queues      int // 50,000
	// Bytes bounds what all queues hold, each message with its headers and some
	// 100 bytes of the broker's own; above it publishers are
	// blocked (connection.blocked) until consumers have made room. 8 GiB.
	Bytes int64
	// MessageBytes is the largest body. 16 MiB, as RabbitMQ 4's.
	MessageBytes int64
	// DiskFree is how much must stay free on the disk; below it publishers are
	// blocked. 256 MiB.
	DiskFree int64
}

// fit lowers the limit of connections to what the process may open: one
// descriptor for each, besides those of the log, of strangers and of whatever
// else runs in the process.
func (l *Limits) fit() (lowered bool) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return false
	}
	most := max((int64(min(files.Cur, 1<<20))-maxStrangers-200)/2, 10)
	if int64(l.Connections) <= most {
		return false
	}
	l.Connections = int(most)
	return true
}

func (l Limits) withDefaults() Limits {
	set := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
	}
	set64 := func(n *int64, d int64) {
		if *n == 0 {
			*n = d
		}
	}
	set(&l.Connections, 1000)
	set(&l.Channels, 2047)
	set(&l.Queues, 50_000)
	set64(&l.Bytes, 8<<30)
	set64(&l.MessageBytes, 16<<20)
	set64(&l.DiskFree, 256<<20)
	return l
}

const (
	frameMax = 131072 // bytes, as RabbitMQ's
	// maxStrangers bounds the connections that have not logged in.
	maxStrangers = 250
	// handshakeBound is how long a client may take from its first byte to the
	// open virtual host.
	handshakeBound = 10 * time.Second
	// closeBound is how long a client may take to answer a connection.close.
	closeBound = 3 * time.Second
	// writeBound is how long a socket may take none of what is written to it.
	writeBound = 30 * time.Second
	// writePiece is how much is written under one writeBound.
	writePiece = 64 << 10
	// batchCommands and batchBytes bound what a connection hands to the core at once.
	batchCommands = 128
	batchBytes    = 1 << 20
	// outDeliveries and outBytes bound the deliveries that wait for a socket.
	outDeliveries = 1024
	outBytes      = 4 << 20
	// outItems is how much of everything else may wait for a socket before its
	// connection is not read any more.
	outItems = 4096
	// backlogBytes is how much may wait for the disk before publishers stand.
	backlogBytes = 32 << 20
	// buryBytes is how much dies in one step of the core.
	buryBytes = 4 << 20
	// sweepAtOnce bounds how many messages expire in one step of the core.
	sweepAtOnce = 512
	// tickEvery is how often limits are looked at.
	tickEvery = time.Second
)

// passing says whether an accept may work again after a pause.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
