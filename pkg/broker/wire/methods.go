package wire

// newMethod is the empty method with these numbers, or nil.
func newMethod(class, id uint16) Method {
	switch uint32(class)<<16 | uint32(id) {
	case 10<<16 | 10:
		return new(ConnectionStart)
	case 10<<16 | 11:
		return new(ConnectionStartOK)
	case 10<<16 | 20:
		return new(ConnectionSecure)
	case 10<<16 | 21:
		return new(ConnectionSecureOK)
	case 10<<16 | 30:
		return new(ConnectionTune)
	case 10<<16 | 31:
		return new(ConnectionTuneOK)
	case 10<<16 | 40:
		return new(ConnectionOpen)
	case 10<<16 | 41:
		return new(ConnectionOpenOK)
	case 10<<16 | 50:
		return new(ConnectionClose)
	case 10<<16 | 51:
		return new(ConnectionCloseOK)
	case 10<<16 | 60:
		return new(ConnectionBlocked)
	case 10<<16 | 61:
		return new(ConnectionUnblocked)
	case 10<<16 | 70:
		return new(ConnectionUpdateSecret)
	case 10<<16 | 71:
		return new(ConnectionUpdateSecretOK)
	case 20<<16 | 10:
		return new(ChannelOpen)
	case 20<<16 | 11:
		return new(ChannelOpenOK)
	case 20<<16 | 20:
		return new(ChannelFlow)
	case 20<<16 | 21:
		return new(ChannelFlowOK)
	case 20<<16 | 40:
		return new(ChannelClose)
	case 20<<16 | 41:
		return new(ChannelCloseOK)
	case 40<<16 | 10:
		return new(ExchangeDeclare)
	case 40<<16 | 11:
		return new(ExchangeDeclareOK)
	case 40<<16 | 20:
		return new(ExchangeDelete)
	case 40<<16 | 21:
		return new(ExchangeDeleteOK)
	case 40<<16 | 30:
		return new(ExchangeBind)
	case 40<<16 | 31:
		return new(ExchangeBindOK)
	case 40<<16 | 40:
		return new(ExchangeUnbind)
	case 40<<16 | 51:
		return new(ExchangeUnbindOK)
	case 50<<16 | 10:
		return new(QueueDeclare)
	case 50<<16 | 11:
		return new(QueueDeclareOK)
	case 50<<16 | 20:
		return new(QueueBind)
	case 50<<16 | 21:
		return new(QueueBindOK)
	case 50<<16 | 50:
		return new(QueueUnbind)
	case 50<<16 | 51:
		return new(QueueUnbindOK)
	case 50<<16 | 30:
		return new(QueuePurge)
	case 50<<16 | 31:
		return new(QueuePurgeOK)
	case 50<<16 | 40:
		return new(QueueDelete)
	case 50<<16 | 41:
		return new(QueueDeleteOK)
	case 60<<16 | 10:
		return new(BasicQos)
	case 60<<16 | 11:
		return new(BasicQosOK)
	case 60<<16 | 20:
		return new(BasicConsume)
	case 60<<16 | 21:
		return new(BasicConsumeOK)
	case 60<<16 | 30:
		return new(BasicCancel)
	case 60<<16 | 31:
		return new(BasicCancelOK)
	case 60<<16 | 40:
		return new(BasicPublish)
	case 60<<16 | 50:
		return new(BasicReturn)
	case 60<<16 | 60:
		return new(BasicDeliver)
	case 60<<16 | 70:
		return new(BasicGet)
	case 60<<16 | 71:
		return new(BasicGetOK)
	case 60<<16 | 72:
		return new(BasicGetEmpty)
	case 60<<16 | 80:
		return new(BasicAck)
	case 60<<16 | 90:
		return new(BasicReject)
	case 60<<16 | 100:
		return new(BasicRecoverAsync)
	case 60<<16 | 110:
		return new(BasicRecover)
	case 60<<16 | 111:
		return new(BasicRecoverOK)
	case 60<<16 | 120:
		return new(BasicNack)
	case 90<<16 | 10:
		return new(TxSelect)
	case 90<<16 | 11:
		return new(TxSelectOK)
	case 90<<16 | 20:
		return new(TxCommit)
	case 90<<16 | 21:
		return new(TxCommitOK)
	case 90<<16 | 30:
		return new(TxRollback)
	case 90<<16 | 31:
		return new(TxRollbackOK)
	case 85<<16 | 10:
		return new(ConfirmSelect)
	case 85<<16 | 11:
		return new(ConfirmSelectOK)
	}
	return nil
}
