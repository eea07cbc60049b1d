import Foundation

/// Draws the token of a position with the noise of that position.
///
/// A draft is accepted where it is the token drawn, so the text is that of plain decoding.
struct KeyedSampler {
    private let noise: Noise
    private let factor: Float

    init(_ temperature: Double, seed: UInt64) {
        (noise, factor) = (Noise(seed: seed), Float(1 / temperature))
    }

    /// The first of the largest of log-probability / temperature + noise.
    func token(_ logits: ArraySlice<Float>, position: Int) -> Int32 {
        let most = logits.max()!
        let normalizer = most + log(logits.reduce(0) { $0 + exp($1 - most) })
        let scores = zip(logits, noise.gumbel(position, count: logits.count)).map { ($0 - normalizer) * factor + $1 }
        return Int32(scores.firstIndex(of: scores.max()!)!)
    }
}
