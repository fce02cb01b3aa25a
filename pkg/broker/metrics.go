package broker

import "github.com/prometheus/client_golang/prometheus"

// metric is one number of the statistics, as Prometheus reads it.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(Stats) float64
}

func gauge(name, help string, value func(Stats) float64) metric {
	return metric{prometheus.NewDesc("fleet_broker_"+name, help, nil, nil), prometheus.GaugeValue, value}
}

func counter(name, help string, value func(Stats) uint64) metric {
	return metric{prometheus.NewDesc("fleet_broker_"+name+"_total", help, nil, nil), prometheus.CounterValue,
		func(s Stats) float64 { return float64(value(s)) }}
}

// metrics is the table of what is measured. Names are added, never changed.
var metrics = []metric{
	gauge("connections", "Open connections.", func(s Stats) float64 { return float64(s.Connections) }),
	gauge("channels", "Open channels.", func(s Stats) float64 { return float64(s.Channels) }),
	gauge("queues", "Queues.", func(s Stats) float64 { return float64(s.Queues) }),
	gauge("exchanges", "Exchanges, the predeclared ones included.", func(s Stats) float64 { return float64(s.Exchanges) }),
	gauge("consumers", "Consumers.", func(s Stats) float64 { return float64(s.Consumers) }),
	gauge("messages", "Messages that wait in queues or are delivered and not settled.", func(s Stats) float64 { return float64(s.Messages) }),
	gauge("message_bytes", "Bytes of the bodies of these messages.", func(s Stats) float64 { return float64(s.Bytes) }),
	gauge("log_bytes", "Size of the log on disk.", func(s Stats) float64 { return float64(s.LogBytes) }),
	gauge("blocked", "1 while publishers are blocked because the disk or the limit of stored bytes is used up.", func(s Stats) float64 {
		if s.Blocked {
			return 1
		}
		return 0
	}),
	counter("published", "Messages that clients published.", func(s Stats) uint64 { return s.Published }),
	counter("delivered", "Messages handed to consumers and to basic.get.", func(s Stats) uint64 { return s.Delivered }),
	counter("acknowledged", "Messages acknowledged.", func(s Stats) uint64 { return s.Acked }),
	counter("returned", "Mandatory messages returned because no queue took them.", func(s Stats) uint64 { return s.Returned }),
	counter("refused", "Messages that a full queue refused.", func(s Stats) uint64 { return s.Refused }),
	counter("expired", "Messages that expired in a queue.", func(s Stats) uint64 { return s.Expired }),
	counter("overflowed", "Messages dropped at the head of a full queue.", func(s Stats) uint64 { return s.Overflowed }),
	counter("dead_lettered", "Messages handed to a dead letter exchange.", func(s Stats) uint64 { return s.DeadLettered }),
	counter("fsyncs", "Times the log was forced to the disk.", func(s Stats) uint64 { return s.Fsyncs }),
}

// Metrics are the numbers of a running server for a Prometheus registry.
func (s *Server) Metrics() prometheus.Collector { return collector{s} }

type collector struct{ server *Server }

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector. It reads what the core has left a
// moment ago and waits for nothing.
func (c collector) Collect(out chan<- prometheus.Metric) {
	stats := c.server.Stats()
	for _, m := range metrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(stats))
	}
}
