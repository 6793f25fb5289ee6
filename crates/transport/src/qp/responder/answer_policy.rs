//! Whether a message is acknowledged before its receive completion is delivered to the program, or
//! together with the program's answer.

/// The number of messages in a row that the program must have answered before an acknowledgement
/// waits for the next answer.
const MIN_ANSWERS: u8 = 64;

/// Decides whether an acknowledgement leaves before the program learns of the message.
///
/// As soon as the program has the message, it may exit, pause, or close its queue pair. An
/// acknowledgement that has not left by then is lost or late. A hardware NIC acknowledges without
/// its program. An acknowledgement that leaves with the program's answer saves a system call, so
/// the acknowledgement waits if the program has answered the last [`MIN_ANSWERS`] messages. Linux's
/// TCP switches between quick and delayed acknowledgements in the same way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct AnswerPolicy {
    state: State,
    /// The number of messages in a row that the program has answered, up to [`MIN_ANSWERS`].
    answers: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum State {
    #[default]
    Answered,
    /// A receive has completed since the last delivery.
    Received,
    /// The program has the message, and has not posted a request since.
    Delivered,
}

impl AnswerPolicy {
    /// Records a message that has completed a receive.
    pub(super) fn on_message(&mut self) {
        let _ = self.on_idle();
        self.state = State::Received;
    }

    /// Handles a delivery of completions to the program. Returns whether a pending acknowledgement
    /// must leave before the delivery.
    pub(super) fn on_delivery(&mut self) -> bool {
        if self.state != State::Received {
            return false;
        }
        self.state = State::Delivered;
        self.answers < MIN_ANSWERS
    }

    /// Records that a request is about to be sent. Returns whether the request is the first since
    /// the last message.
    pub(super) fn on_answer(&mut self) -> bool {
        let state = std::mem::take(&mut self.state);
        if state == State::Delivered {
            self.answers = (self.answers + 1).min(MIN_ANSWERS);
        }
        state != State::Answered
    }

    /// Records an idle poll: the program does not answer the message that it has. Returns whether
    /// no request was sent since the last message.
    pub(super) fn on_idle(&mut self) -> bool {
        if self.state == State::Delivered {
            self.answers = 0;
        }
        self.state != State::Answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers a message. Returns whether its acknowledgement leaves first.
    fn deliver(policy: &mut AnswerPolicy) -> bool {
        policy.on_message();
        policy.on_delivery()
    }

    #[test]
    fn acknowledgement_waits_for_the_answer_of_a_program_that_has_answered() {
        let mut policy = AnswerPolicy::default();
        for _ in 0..MIN_ANSWERS {
            assert!(deliver(&mut policy));
            assert!(policy.on_answer());
        }
        assert!(!deliver(&mut policy));
        // The program has sent no answer between the two deliveries.
        assert!(deliver(&mut policy));
    }

    #[test]
    fn idle_poll_after_the_delivery_ends_the_wait() {
        let mut policy = AnswerPolicy::default();
        for _ in 0..MIN_ANSWERS {
            deliver(&mut policy);
            assert!(policy.on_answer());
        }
        policy.on_message();
        assert!(policy.on_idle()); // before the delivery
        assert!(!policy.on_delivery());
        assert!(policy.on_idle());
        assert!(deliver(&mut policy));
    }

    #[test]
    fn nothing_is_sent_for_a_delivery_without_a_message() {
        assert!(!AnswerPolicy::default().on_delivery());
    }
}
