// What CoreMLRunner uses of Apple's Core ML, as its documentation declares it, without contents: where
// there is no Core ML, the compiler checks the runner's types against these lines.
import Foundation

public enum MLComputeUnits: Int { case cpuOnly, cpuAndGPU, all, cpuAndNeuralEngine }

public struct MLModelMetadataKey: Hashable, Sendable {
    public static let creatorDefinedKey = MLModelMetadataKey()
}

public class MLModelConfiguration {
    public init() {}
    public var computeUnits = MLComputeUnits.all
    public var functionName: String?
}

public protocol MLShapedArrayScalar {}
extension Int32: MLShapedArrayScalar {}
extension Float: MLShapedArrayScalar {}

public enum MLMultiArrayDataType: Int { case double, float32, float16, int32, int8 }

public class MLMultiArray {
    public var shape: [NSNumber] { fatalError() }
    public var dataType: MLMultiArrayDataType { fatalError() }
}

public struct MLShapedArray<Scalar: MLShapedArrayScalar> {
    public init<S: Sequence>(scalars: S, shape: [Int]) where S.Element == Scalar {}
    public init(_ multiArray: MLMultiArray) {}
    public init(converting multiArray: MLMultiArray) {}
    public var scalars: [Scalar] { fatalError() }
}

public class MLFeatureValue {
    public convenience init<Scalar>(shapedArray: MLShapedArray<Scalar>) { fatalError() }
    public var multiArrayValue: MLMultiArray? { fatalError() }
}

public protocol MLFeatureProvider {
    var featureNames: Set<String> { get }
    func featureValue(for featureName: String) -> MLFeatureValue?
}

public class MLDictionaryFeatureProvider: MLFeatureProvider {
    public init(dictionary: [String: Any]) throws {}
    public var featureNames: Set<String> { fatalError() }
    public func featureValue(for featureName: String) -> MLFeatureValue? { fatalError() }
}

public class MLFeatureDescription {}

public class MLModelDescription {
    public var metadata: [MLModelMetadataKey: Any] { fatalError() }
    public var stateDescriptionsByName: [String: MLFeatureDescription] { fatalError() }
}

public final class MLState: @unchecked Sendable {}

public class MLModel {
    public init(contentsOf url: URL, configuration: MLModelConfiguration) throws {}
    public var modelDescription: MLModelDescription { fatalError() }
    public func makeState() -> MLState { fatalError() }
    public func prediction(from input: any MLFeatureProvider) throws -> any MLFeatureProvider { fatalError() }
    public func prediction(
        from inputFeatures: any MLFeatureProvider, using state: MLState
    ) throws -> any MLFeatureProvider { fatalError() }
}
